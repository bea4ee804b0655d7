-- The role stays: it belongs to the whole server, and logins of brokers are members of it. Other grantees keep what they were granted.
DO $$
DECLARE
    home CONSTANT name := current_schema();
    owner CONSTANT name := pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'jobs'::regclass;
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_broker') THEN
        EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA %I REVOKE ALL ON TABLES FROM longshore_broker', owner, home);
        EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA %I REVOKE ALL ON FUNCTIONS FROM longshore_broker', owner, home);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM longshore_broker', home);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM longshore_broker', home);
        EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM longshore_broker', home);
    END IF;
END
$$;
DROP FUNCTION grant_to_broker(name);
