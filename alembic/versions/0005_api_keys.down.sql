ALTER TABLE jobs DROP COLUMN held_by;
DELETE FROM versions WHERE name = 'api_keys';
DROP TABLE api_keys;
