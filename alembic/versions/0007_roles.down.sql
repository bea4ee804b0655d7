-- The role stays: it belongs to the whole server, and logins of brokers are members of it. Other
-- grantees keep their grants.
DO $$
DECLARE
    home CONSTANT name := current_schema();
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_broker') THEN
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM longshore_broker', home);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM longshore_broker', home);
        EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM longshore_broker', home);
    END IF;
END
$$;
DROP FUNCTION grant_to_broker(name);
