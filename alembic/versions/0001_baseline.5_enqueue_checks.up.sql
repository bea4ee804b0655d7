-- longshore_enqueue_v1 enqueues a job in the caller's own transaction, for services that share the
-- database. It does the same as an enqueue over HTTP (app/enqueue); tests compare both
-- (tests/sql/enqueue).
--
--     5_enqueue_checks   functions that compute values and check arguments
--     6_enqueue_rows     functions that read, lock and change rows
--     7_enqueue          longshore_enqueue_v1 itself
--     9_sharding         its settings for a cluster sharded by lane
--
--  * The function never calls NOTIFY, because NOTIFY takes a cluster-wide lock at the caller's
--    commit. The periodic polls of the brokers find the job within a second.
--  * Locks are held until the caller's commit. Lock order: see app/leases/leases.sql.
--  * Limits that the HTTP API reads from the settings have their default values here, because SQL
--    does not know the settings of the brokers.
--  * A string with a backslash must begin with E, because callers may have turned
--    standard_conforming_strings off.

-- Like shared_digest in app/db/lanes.py: hashes a text to 128 bits.
CREATE FUNCTION longshore_digest(value text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN encode(substr(sha256(convert_to(value, 'UTF8')), 1, 16), 'hex')::uuid;
END
$$;

-- Like lane_of in app/db/lanes.py: extracts the lane from a job id. The lane is in bits 67 to 90.
CREATE FUNCTION longshore_lane_of(job_id uuid) RETURNS int
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    bytes bytea := uuid_send(job_id);
BEGIN
    RETURN ((get_byte(bytes, 8) & 63) << 18) + (get_byte(bytes, 9) << 10) + (get_byte(bytes, 10) << 2)
        + (get_byte(bytes, 11) >> 6);
END
$$;

-- Like JobIdGenerator in app/db/lanes.py: generates a job id. The id has the fraction of the
-- millisecond in place of the counter.
CREATE FUNCTION longshore_generate_id(job_lane int, created_at timestamptz) RETURNS uuid
LANGUAGE plpgsql
AS $$
DECLARE
    microseconds bigint := extract(epoch FROM created_at) * 1000000;
    fraction bigint := microseconds % 1000 * 4096 / 1000;
    random_bits bigint := ('x' || right(gen_random_uuid()::text, 10))::bit(40)::bigint & ((1::bigint << 38) - 1);
BEGIN
    RETURN lpad(to_hex(microseconds / 1000), 12, '0') || '7' || lpad(to_hex(fraction), 3, '0')
        || to_hex((1::bigint << 63) | (job_lane::bigint << 38) | random_bits);
END
$$;

-- Like app/http/strict_json.py: returns the fault of a document that Postgres accepts but that
-- other parsers reject or read differently. Returns NULL if the document has no fault.
CREATE FUNCTION longshore_find_json_fault(document json, max_bytes int) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    string_pattern CONSTANT text := E'"(?:[^"\\\\]|\\\\.)*"';
    document_text text := document::text;
    outside_strings text;
    opening_brackets int;
    max_depth int;
    normalized text;
BEGIN
    IF octet_length(document_text) > max_bytes THEN
        RETURN format('must have at most %s bytes, but has %s', max_bytes, octet_length(document_text));
    END IF;
    outside_strings := regexp_replace(document_text, string_pattern, '', 'g');
    opening_brackets := length(outside_strings) - length(translate(outside_strings, '[{', ''));
    IF opening_brackets + length(outside_strings) - length(replace(outside_strings, ',', '')) >= 10000 THEN
        RETURN 'more than 10000 values';
    END IF;
    IF opening_brackets > 64 THEN
        SELECT max(depth)
        INTO max_depth
        FROM (
            SELECT sum(CASE WHEN bracket IN ('[', '{') THEN 1 ELSE -1 END) OVER (ORDER BY position) AS depth
            FROM string_to_table(regexp_replace(outside_strings, '[^][{}]', '', 'g'), NULL)
                WITH ORDINALITY AS brackets (bracket, position)
        ) AS depths;
        IF max_depth > 64 THEN
            RETURN 'nested more than 64 levels deep';
        END IF;
    END IF;
    IF outside_strings ~ '[-+.0-9eE]{65}' THEN
        RETURN 'a number of more than 64 digits';
    END IF;
    BEGIN
        normalized := document_text::jsonb::text;
    EXCEPTION
        WHEN data_exception OR program_limit_exceeded THEN
            RETURN SQLERRM;  -- a NUL character, an unpaired surrogate, a number out of range
    END;
    IF EXISTS (
        SELECT
        FROM regexp_matches(outside_strings, '[.0-9]+[eE][+]?[0-9]+', 'g') AS numbers (parts)
        WHERE parts[1]::numeric > 1.7976931348623158079e308
    ) THEN
        RETURN 'a number that does not fit into a double';
    END IF;
    normalized := regexp_replace(normalized, string_pattern, '', 'g');
    IF length(outside_strings) - length(replace(outside_strings, ':', ''))
        <> length(normalized) - length(replace(normalized, ':', '')) THEN
        RETURN 'duplicate key in an object';
    END IF;
    RETURN NULL;
END
$$;

-- Like RetryPolicy in app/queues/schemas.py: returns the fault of a retry policy. Returns NULL if
-- the policy is valid.
CREATE FUNCTION longshore_find_retry_fault(retry json) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    fault text := longshore_find_json_fault(retry, 1024);
BEGIN
    IF fault IS NULL AND json_typeof(retry) <> 'object' THEN
        RETURN 'must be an object';
    ELSIF fault IS NULL THEN
        SELECT CASE
            WHEN field.name IS NULL THEN format('unknown field %s', member.name)
            ELSE format('%s must be a number from %s to %s', field.name, field.minimum, field.maximum)
        END
        INTO fault
        FROM json_each(retry) AS member (name, value)
        LEFT JOIN (
            VALUES ('base_seconds', 0, 31622400), ('factor', 1, 1000), ('max_seconds', 0, 31622400), ('jitter', 0, 1)
        ) AS field (name, minimum, maximum) ON field.name = member.name
        WHERE CASE
            WHEN field.name IS NULL OR json_typeof(member.value) <> 'number' THEN true
            ELSE member.value::text::numeric NOT BETWEEN field.minimum AND field.maximum
        END
        LIMIT 1;
    END IF;
    RETURN fault;
END
$$;
