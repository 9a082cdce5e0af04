-- Types and tables are looked for in pg_temp first unless a path names it last, and every client may make some there.
-- What a member needs whose transactions are logged as rows. Executed as a whole, also where an earlier version has made some of it.
ALTER TABLE understudy_mirror.state
  -- The log has all commits of this server up to here.
  ADD COLUMN IF NOT EXISTS logged pg_lsn,
  -- The member is a copy of that server's, with all commits up to there.
  ADD COLUMN IF NOT EXISTS copied_system text,
  ADD COLUMN IF NOT EXISTS copied_up_to pg_lsn;
-- Clients' sessions write no numbers: the appliers do.
REVOKE INSERT ON understudy_mirror.applied FROM PUBLIC;
CREATE TABLE IF NOT EXISTS understudy_mirror.definitions
  (tag text NOT NULL, said text NOT NULL, login text NOT NULL, role text NOT NULL, settings text NOT NULL);
-- What came of it, as far as it must be the same on both members.
ALTER TABLE understudy_mirror.definitions ADD COLUMN IF NOT EXISTS result text NOT NULL DEFAULT '', REPLICA IDENTITY FULL;

-- Epochs in which clients were served by this member, and its transactions of them that were undone.
CREATE TABLE IF NOT EXISTS understudy_mirror.served (epoch bigint PRIMARY KEY);
CREATE TABLE IF NOT EXISTS understudy_mirror.undone (epoch bigint NOT NULL, xid bigint NOT NULL, PRIMARY KEY (epoch, xid));

-- The name of the transaction that is open: the epoch, and its number at this server.
CREATE OR REPLACE FUNCTION understudy_mirror.transaction() RETURNS text
  LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  AS $$ SELECT concat((SELECT max(epoch) FROM understudy_mirror.served), '-', pg_current_xact_id()::xid) $$;

-- True if the log has a transaction, and false if it never will; it waits for one that is under way. Null if nobody knows.
CREATE OR REPLACE FUNCTION understudy_mirror.committed(token text) RETURNS boolean
  LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  AS $$
    DECLARE
      deadline CONSTANT timestamptz := clock_timestamp() + interval '30 seconds';
      last CONSTANT bigint := max(s.epoch) FROM understudy_mirror.served s;
      next CONSTANT bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
      own_epoch bigint;
      own_count bigint;
      whole bigint;
      status text;
      flushed pg_lsn;
    BEGIN
      IF EXISTS (SELECT FROM understudy_mirror.applied a WHERE a.token = $1) THEN
        RETURN true;
      END IF;
      IF $1 !~ '^[0-9]{1,10}-[0-9]{1,18}$' THEN
        RETURN NULL;
      END IF;
      own_epoch := split_part($1, '-', 1);
      own_count := split_part($1, '-', 2);
      IF NOT EXISTS (SELECT FROM understudy_mirror.served s WHERE s.epoch = own_epoch) THEN
        -- Nobody serves before the member has all that the log has of the epochs before.
        IF own_epoch < last
          AND (own_epoch, own_count) > (SELECT s.forgotten_epoch, s.forgotten_count FROM understudy_mirror.state s)
        THEN
          RETURN false;
        END IF;
        RETURN NULL;
      END IF;
      -- It is a transaction of this server; of its number the lower half is known.
      whole := (next >> 32 << 32) + own_count;
      IF whole > next + (1::bigint << 31) THEN
        whole := whole - (1::bigint << 32);
      ELSIF whole + (1::bigint << 31) < next THEN
        whole := whole + (1::bigint << 32);
      END IF;
      IF own_count >= 1::bigint << 32 OR whole < 3 OR whole::text::xid8 = pg_current_xact_id_if_assigned() THEN
        RETURN NULL;
      END IF;
      BEGIN
        LOOP
          status := pg_xact_status(whole::text::xid8);
          EXIT WHEN status IS DISTINCT FROM 'in progress';
          IF clock_timestamp() > deadline THEN
            RETURN NULL;
          END IF;
          PERFORM pg_sleep(0.01);
        END LOOP;
      EXCEPTION WHEN invalid_parameter_value THEN
        -- Nobody has it yet.
        RETURN NULL;
      END;
      IF status IS DISTINCT FROM 'committed' THEN
        RETURN CASE status WHEN 'aborted' THEN false END;
      END IF;
      IF EXISTS (SELECT FROM understudy_mirror.undone u WHERE u.epoch = own_epoch AND u.xid = own_count) THEN
        RETURN false;
      END IF;
      -- Before the next epoch everything was logged, or undone. In this one it may be visible before the log has it.
      flushed := pg_current_wal_flush_lsn();
      WHILE own_epoch = last AND NOT EXISTS (SELECT FROM pg_replication_slots
        WHERE slot_name = 'understudy_mirror' AND confirmed_flush_lsn >= flushed)
      LOOP
        IF clock_timestamp() > deadline THEN
          RETURN NULL;
        END IF;
        PERFORM pg_sleep(0.01);
      END LOOP;
      RETURN true;
    END $$;

-- Whole rows say which row is meant where no key does at once. A generated column of a key would arrive as null.
CREATE OR REPLACE FUNCTION understudy_mirror.identify() RETURNS void
  LANGUAGE sql SET search_path = pg_catalog, pg_temp
  AS $$
    UPDATE pg_class c SET relreplident = w.wanted
    FROM (SELECT t.oid, CASE WHEN EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = t.oid AND i.indisprimary AND i.indimmediate AND i.indisvalid
          AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attnum = ANY (i.indkey) AND a.attgenerated <> ''))
        THEN 'd' ELSE 'f' END::"char" AS wanted
      FROM pg_class t
      WHERE t.relkind IN ('r', 'p') AND t.relpersistence = 'p' AND t.oid >= 16384
        AND t.relnamespace <> 'understudy_mirror'::regnamespace) w
    WHERE c.oid = w.oid AND c.relreplident <> w.wanted AND c.relreplident <> 'i'
  $$;
REVOKE EXECUTE ON FUNCTION understudy_mirror.identify() FROM PUBLIC;

-- Fails for what the rows of a transaction do not say.
CREATE OR REPLACE FUNCTION understudy_mirror.refuse(what text, hint text) RETURNS void
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
  AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = 'the mirror does not carry ' || what, HINT = hint; END $$;

-- Refuses a text that changes what the mirror hears by: without it, commits would be answered that nobody logs.
CREATE OR REPLACE FUNCTION understudy_mirror.spare(said text) RETURNS void
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
  AS $$
    BEGIN
      IF said ~* '\m(publication|trigger)\s+(if\s+exists\s+)?"?understudy_mirror' THEN
        PERFORM understudy_mirror.refuse('changes of its own publication and event triggers',
          'Stop both managers first, to give the mirror up.');
      END IF;
    END $$;

-- The text that has defined something: that of the client, or of the innermost function; null if that has said it in another way.
CREATE OR REPLACE FUNCTION understudy_mirror.said(stack text) RETURNS text
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
  AS $$
    DECLARE
      outer_stack text := substring(stack FROM '^[^\n]*\n(.*)$');
      said text;
    BEGIN
      IF outer_stack IS NULL THEN
        RETURN current_query();
      END IF;
      RETURN substring(outer_stack FROM '^SQL statement "(.*?)"\n(?:PL/|SQL )');
    END $$;

-- Sum of a table's rows that does not depend on their order, nor on that of columns of a table that inherits, which a copy has in another.
CREATE OR REPLACE FUNCTION understudy_mirror.sum(relation oid) RETURNS text
  LANGUAGE plpgsql
  SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO' SET IntervalStyle = 'postgres' SET TimeZone = 'UTC' SET extra_float_digits = 1
  SET bytea_output = 'hex' SET lc_monetary = 'C'
  AS $$
    DECLARE
      summed text;
      columns CONSTANT text := string_agg(format('t.%I', a.attname), ', ' ORDER BY a.attname) FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid AND NOT c.relispartition JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE i.inhrelid = relation AND i.inhseqno = 1 AND a.attnum > 0 AND NOT a.attisdropped;
    BEGIN
      IF NOT (SELECT relispopulated FROM pg_class WHERE oid = relation) THEN
        RETURN 'empty';
      END IF;
      EXECUTE format('SELECT concat_ws('' '', count(*), sum(hashtextextended(format(''%%s'', %s), 0)::numeric)) FROM ONLY %s t',
        coalesce(format('ROW(%s)', columns), 't.*'), relation::regclass) INTO summed;
      RETURN summed;
    END $$;
REVOKE EXECUTE ON FUNCTION understudy_mirror.sum(oid) FROM PUBLIC;

-- True if a view calls anything that is not immutable, also in the views that it reads, or reads what a member may have otherwise.
CREATE OR REPLACE FUNCTION understudy_mirror.is_volatile(view oid) RETURNS boolean
  LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
  AS $$
    WITH RECURSIVE reads (oid) AS (
      SELECT view
      UNION
      SELECT d.refobjid FROM reads JOIN pg_rewrite r ON r.ev_class = reads.oid
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass),
    trees (tree) AS (SELECT r.ev_action::text FROM reads JOIN pg_rewrite r ON r.ev_class = reads.oid WHERE r.rulename = '_RETURN')
    SELECT EXISTS (SELECT FROM reads JOIN pg_class c ON c.oid = reads.oid WHERE c.relkind = 'f')
      OR EXISTS (SELECT FROM trees WHERE tree ~ '\{(SQLVALUEFUNCTION|TABLESAMPLECLAUSE|NEXTVALUEEXPR|CURRENTOFEXPR)')
      OR EXISTS (SELECT FROM trees CROSS JOIN LATERAL
          regexp_matches(tree, ':(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)', 'g') f JOIN pg_proc p ON p.oid = f[1]::oid
          WHERE p.provolatile <> 'i')
  $$;
REVOKE EXECUTE ON FUNCTION understudy_mirror.is_volatile(oid) FROM PUBLIC;

-- Settings that the meaning of a definition depends on.
CREATE OR REPLACE FUNCTION understudy_mirror.settings(path text) RETURNS text
  LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
  AS $$
    SELECT json_build_object(
      'search_path', path, 'TimeZone', current_setting('TimeZone'), 'DateStyle', current_setting('DateStyle'),
      'IntervalStyle', current_setting('IntervalStyle'), 'xmloption', current_setting('xmloption'),
      'extra_float_digits', current_setting('extra_float_digits'), 'bytea_output', current_setting('bytea_output'),
      'lc_monetary', current_setting('lc_monetary'), 'array_nulls', current_setting('array_nulls'),
      'standard_conforming_strings', current_setting('standard_conforming_strings'),
      'default_text_search_config', current_setting('default_text_search_config'),
      'default_tablespace', current_setting('default_tablespace'),
      'default_table_access_method', current_setting('default_table_access_method'),
      -- What a body names need not be there, as a temporary table is not.
      'check_function_bodies', 'off')::text
  $$;

-- Lets only the functions below write down definitions, each by the role that has said it: whoever else may run in a session, as what a
-- client has defined, would have it executed at the other member as whoever it likes.
CREATE OR REPLACE FUNCTION understudy_mirror.guard() RETURNS trigger
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
  AS $$
    DECLARE
      stack text;
    BEGIN
      GET DIAGNOSTICS stack = PG_CONTEXT;
      IF stack !~ ('^[^\n]*\nSQL statement "INSERT INTO understudy_mirror\.definitions VALUES \(tag, said, '''', '''', settings, result\)"\n'
        'PL/pgSQL function understudy_mirror\.(define\(\)|execute\(text\)) line ')
      THEN
        RAISE insufficient_privilege USING MESSAGE = 'only definitions write down definitions';
      END IF;
      NEW.login := session_user;
      NEW.role := current_user;
      IF NOT pg_has_role(NEW.login, NEW.role, 'MEMBER') THEN
        PERFORM understudy_mirror.refuse(
          format('a definition of the role %I, whose member the role that has logged in is not', NEW.role),
          'Log in as that role, or say it outside of functions with SECURITY DEFINER.');
      END IF;
      RETURN NEW;
    END $$;
DROP TRIGGER IF EXISTS guard ON understudy_mirror.definitions;
CREATE TRIGGER guard BEFORE INSERT ON understudy_mirror.definitions FOR EACH ROW EXECUTE FUNCTION understudy_mirror.guard();
ALTER TABLE understudy_mirror.definitions ENABLE ALWAYS TRIGGER guard;
GRANT INSERT ON understudy_mirror.definitions TO PUBLIC;

-- Executes a statement for which no event trigger fires, and writes it down; others were written down already.
CREATE OR REPLACE FUNCTION understudy_mirror.execute(said text) RETURNS void
  LANGUAGE plpgsql
  AS $$
    DECLARE
      tag CONSTANT pg_catalog.text := 'SHARED';
      settings CONSTANT pg_catalog.text := understudy_mirror.settings(pg_catalog.current_setting('search_path'));
      result CONSTANT pg_catalog.text := '';
    BEGIN
      PERFORM pg_catalog.set_config('understudy_mirror.noted', 'no', true);
      PERFORM understudy_mirror.spare(said);
      EXECUTE said;
      IF pg_catalog.texteq(pg_catalog.current_setting('understudy_mirror.noted'), 'no') THEN
        INSERT INTO understudy_mirror.definitions VALUES (tag, said, '', '', settings, result);
      END IF;
    END $$;

-- Refuses what cannot be defined at the other member. What came of it is null if nothing is to be written down, and the settings are
-- empty if nothing is to be done there: others of its text are found by their turn.
CREATE OR REPLACE FUNCTION understudy_mirror.note(event text, tag text, path text, said text, OUT settings text, OUT result text)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  AS $$
    DECLARE
      -- DROP INDEX CONCURRENTLY does not begin in a transaction that has a number.
      own_xid CONSTANT xid := CASE event WHEN 'ddl_command_start' THEN NULL ELSE pg_current_xact_id() END::xid;
      fills CONSTANT boolean := tag IN ('CREATE TABLE AS', 'SELECT INTO');
      nothing CONSTANT text := CASE WHEN said IS NOT NULL THEN '' END;
      unbuilt CONSTANT text[] := coalesce(string_to_array(current_setting('understudy_mirror.unbuilt', true), E'\n'), '{}');
      is_nothing boolean;
      is_some boolean;
      what text;
    BEGIN
      settings := '';
      IF current_setting('understudy_mirror.own', true) = 'on' AND (SELECT rolsuper FROM pg_roles WHERE rolname = session_user) THEN
        RETURN;
      END IF;
      IF event = 'ddl_command_start' AND tag = 'ALTER TABLE' AND said ~* '\mdetach\M.*\m(concurrently|finalize)\M' THEN
        -- Its two transactions leave a constraint that one does not.
        PERFORM understudy_mirror.refuse('a partition that is detached CONCURRENTLY', 'Detach it without CONCURRENTLY.');
      END IF;
      IF event = 'ddl_command_start' AND tag LIKE 'DROP %' THEN
        -- For as long as the command, which may have several transactions.
        PERFORM set_config('understudy_mirror.unbuilt', coalesce(string_agg(o.identity, E'\n'), ''), false)
          FROM pg_index i, pg_identify_object('pg_class'::regclass, i.indexrelid, 0) o WHERE NOT i.indisvalid;
      END IF;
      IF event = 'ddl_command_start' AND (NOT fills OR said IS NULL) OR tag = 'REINDEX' THEN
        RETURN;
      END IF;
      PERFORM understudy_mirror.spare(said);
      SELECT o.object_identity INTO what FROM (
          SELECT d.object_type, d.object_identity FROM pg_event_trigger_ddl_commands() d WHERE event = 'ddl_command_end'
          UNION ALL SELECT d.object_type, d.object_identity FROM pg_event_trigger_dropped_objects() d WHERE event = 'sql_drop') o
        WHERE o.object_identity ~ '^understudy_mirror(\.|$)' LIMIT 1;
      IF what IS NOT NULL THEN
        PERFORM understudy_mirror.refuse('changes of its own schema, as ' || what,
          'Stop both managers, and SET understudy_mirror.own = on as a superuser, to give the mirror up.');
      END IF;
      IF event = 'sql_drop' THEN
        -- Indexes that could not be built are not there.
        -- The rule of a temporary view counts as one of the usual kind.
        SELECT bool_and(is_temporary OR object_identity = ANY (unbuilt) OR object_identity ~ '\mpg_temp\.'),
            bool_or(object_identity = ANY (unbuilt))
          INTO is_nothing, is_some FROM pg_event_trigger_dropped_objects();
        IF tag NOT LIKE 'DROP %' OR tag = 'DROP OWNED' OR is_nothing THEN
          RETURN;
        END IF;
        IF is_some AND tag = 'DROP INDEX' THEN
          PERFORM understudy_mirror.refuse('an index that could not be built and is dropped with others', 'Drop it by itself.');
        END IF;
        PERFORM set_config('understudy_mirror.dropped', 'on', true);
        SELECT string_agg(object_type || ' ' || object_identity, ', ' ORDER BY object_type, object_identity) INTO result
          FROM pg_event_trigger_dropped_objects()
          WHERE NOT is_temporary AND object_identity !~ 'pg_toast|_ConstraintTrigger_|\mpg_temp\.' AND object_identity <> ALL (unbuilt);
        result := md5(result);
      ELSIF event = 'ddl_command_end' THEN
        IF said IS NULL AND NOT EXISTS (SELECT FROM pg_event_trigger_ddl_commands()) THEN
          -- PostgreSQL's own, as REFRESH ... CONCURRENTLY makes.
          RETURN;
        END IF;
        PERFORM understudy_mirror.identify();
        IF tag LIKE 'DROP %' AND tag <> 'DROP OWNED' THEN
          IF coalesce(current_setting('understudy_mirror.dropped', true), '') <> 'on' THEN
            result := nothing;
          END IF;
          PERFORM set_config('understudy_mirror.dropped', '', true);
          RETURN;
        END IF;
        IF (SELECT bool_and(in_extension OR coalesce(schema_name LIKE 'pg\_temp%', false)) FROM pg_event_trigger_ddl_commands()) THEN
          IF NOT fills THEN
            result := nothing;
          END IF;
          RETURN;
        END IF;
        SELECT c.oid::regclass::text INTO what FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
          WHERE d.classid = 'pg_class'::regclass AND c.relpersistence = 'u' LIMIT 1;
        IF what IS NOT NULL THEN
          PERFORM understudy_mirror.refuse('unlogged tables, as ' || what, 'Make it a table of the usual kind.');
        END IF;
        SELECT format('%s of the type %s', a.attname, t.oid::regtype) INTO what FROM pg_event_trigger_ddl_commands() d
          JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind IN ('r', 'p')
          JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid JOIN pg_type b ON b.oid IN (t.oid, t.typbasetype)
          WHERE a.attnum > 0 AND NOT a.attisdropped AND b.typnamespace = 'pg_catalog'::regnamespace AND b.typname = ANY (
            '{pg_node_tree,pg_ndistinct,pg_dependencies,pg_mcv_list,pg_brin_bloom_summary,pg_brin_minmax_multi_summary,gtsvector}') LIMIT 1;
        IF what IS NOT NULL THEN
          PERFORM understudy_mirror.refuse('values that PostgreSQL writes and does not read, as ' || what, 'Use a column of the type text.');
        END IF;
        SELECT a.attname INTO what FROM pg_event_trigger_ddl_commands() d JOIN pg_attribute a ON a.attrelid = d.objid
          JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
          WHERE d.classid = 'pg_class'::regclass AND a.atthasmissing AND age(a.xmin) <= age(own_xid)
            AND coalesce(pg_get_expr(f.adbin, f.adrelid), t.typdefault) ~ '[(]|CURRENT_|LOCALTIME|SESSION_USER|USER' LIMIT 1;
        IF what IS NOT NULL THEN
          PERFORM understudy_mirror.refuse('a new column whose default is evaluated, as ' || what,
            'Add the column without the default, set the default then, and update the rows.');
        END IF;
        SELECT i.inhrelid::regclass::text INTO what FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
          WHERE c.relkind = 'f' AND age(i.xmin) <= age(own_xid) LIMIT 1;
        IF what IS NOT NULL THEN
          PERFORM understudy_mirror.refuse('a foreign table that is a part of another table, as ' || what,
            'Let the partition be a table.');
        END IF;
        SELECT p.partrelid::regclass::text INTO what FROM pg_partitioned_table p
          JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs) JOIN pg_type t ON t.oid = a.atttypid
          WHERE p.partstrat = 'h' AND age(p.xmin) <= age(own_xid)
            AND EXISTS (SELECT FROM pg_type e WHERE e.oid IN (t.oid, t.typelem, t.typbasetype) AND e.typtype = 'e') LIMIT 1;
        IF what IS NOT NULL THEN
          PERFORM understudy_mirror.refuse('partitions by the hash of an enum, as ' || what,
            'Use LIST, or the hash of a column of another type: the numbers of an enum''s labels differ between servers.');
        END IF;
        IF tag = 'ALTER TABLE' AND said ~* '\madd\M.*\mdefault\M' AND said ~* '\mset\s+default\M' THEN
          PERFORM understudy_mirror.refuse('a new column whose default is changed by the same statement',
            'Set the default by another statement.');
        END IF;
        SELECT d.object_identity INTO what FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
          WHERE d.classid = 'pg_class'::regclass AND c.relkind = 'm' AND c.relispopulated AND understudy_mirror.is_volatile(c.oid) LIMIT 1;
        IF what IS NOT NULL AND tag IN ('CREATE MATERIALIZED VIEW', 'REFRESH MATERIALIZED VIEW') THEN
          PERFORM understudy_mirror.refuse('a materialized view of what is evaluated, as ' || what,
            'Use a table, or leave functions out that are not immutable.');
        END IF;
        SELECT t.tgname INTO what FROM pg_trigger t WHERE t.tgenabled IN ('A', 'R') AND age(t.xmin) <= age(own_xid)
          UNION ALL SELECT r.rulename FROM pg_rewrite r WHERE r.ev_enabled IN ('A', 'R') AND age(r.xmin) <= age(own_xid) LIMIT 1;
        IF what IS NOT NULL THEN
          PERFORM understudy_mirror.refuse('triggers and rules that fire when rows are replicated, as ' || what,
            'They would fire twice: leave out ENABLE ALWAYS and ENABLE REPLICA.');
        END IF;
        IF fills AND said IS NOT NULL THEN
          RETURN;
        END IF;
        SELECT string_agg(object_type || ' ' || object_identity || CASE
            WHEN c.relkind = 'm' THEN understudy_mirror.sum(c.oid)
            WHEN c.oid::text = ANY (string_to_array(current_setting('understudy_mirror.rewritten', true), ' '))
              THEN understudy_mirror.sum(c.oid)
            ELSE '' END, ', ' ORDER BY object_type, object_identity) INTO result
          FROM pg_event_trigger_ddl_commands() d LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
          WHERE NOT d.in_extension AND coalesce(d.schema_name, '') !~ '^pg_t' ;
        result := md5(result);
        PERFORM set_config('understudy_mirror.rewritten', '', true);
      END IF;
      SELECT c.relname INTO what FROM pg_class c
        WHERE c.relnamespace = pg_my_temp_schema() AND c.relkind IN ('r', 'v') AND said !~* '\m(temp|temporary|pg_temp)\M'
          AND CASE WHEN c.relname ~ '^\w+$' THEN said ~* ('\m' || c.relname || '\M') ELSE strpos(said, c.relname) > 0 END
          -- Names in the text of a body are looked up when it runs.
          AND (tag NOT IN ('CREATE FUNCTION', 'CREATE PROCEDURE') OR EXISTS (
            SELECT FROM pg_event_trigger_ddl_commands() d JOIN pg_depend p ON p.classid = d.classid AND p.objid = d.objid
            WHERE p.refobjid = c.oid AND p.refclassid = 'pg_class'::regclass OR p.refclassid = 'pg_type'::regclass
              AND p.refobjid IN (SELECT t.oid FROM pg_type t WHERE c.reltype IN (t.oid, t.typelem)))) LIMIT 1;
      IF what IS NOT NULL THEN
        PERFORM understudy_mirror.refuse('a definition that names something temporary, as ' || what,
          'Name tables of the usual kind, and fill a table by INSERT after it is made; or drop what is temporary first.');
      END IF;
      IF said IS NULL THEN
        PERFORM understudy_mirror.refuse('a definition that a function says in another way than PL/pgSQL',
          'Say it by itself, or in PL/pgSQL.');
      END IF;
      result := coalesce(result, '');
      settings := understudy_mirror.settings(path);
    END $$;

-- By the rights of whoever defines something, and with that one's path: nothing here is looked up in it.
CREATE OR REPLACE FUNCTION understudy_mirror.define() RETURNS event_trigger
  LANGUAGE plpgsql
  AS $$
    DECLARE
      stack pg_catalog.text;
      tag CONSTANT pg_catalog.text := TG_TAG;
      said pg_catalog.text;
      settings pg_catalog.text;
      result pg_catalog.text;
    BEGIN
      GET DIAGNOSTICS stack = PG_CONTEXT;
      said := understudy_mirror.said(stack);
      SELECT n.settings, n.result INTO settings, result
        FROM understudy_mirror.note(TG_EVENT, tag, pg_catalog.current_setting('search_path'), said) n;
      IF result IS NOT NULL THEN
        INSERT INTO understudy_mirror.definitions VALUES (tag, said, '', '', settings, result);
        PERFORM pg_catalog.set_config('understudy_mirror.noted', 'yes', true);
      END IF;
    END $$;

-- A table that is written anew says nothing of its rows.
CREATE OR REPLACE FUNCTION understudy_mirror.rewritten() RETURNS event_trigger
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
  AS $$
    BEGIN
      IF (SELECT relpersistence = 't' FROM pg_class WHERE oid = pg_event_trigger_table_rewrite_oid()) THEN
        RETURN;
      END IF;
      IF pg_event_trigger_table_rewrite_reason() & 3 <> 0
        OR pg_event_trigger_table_rewrite_reason() & 4 <> 0 AND (current_query() ~* '\musing\M' OR EXISTS (
          SELECT FROM pg_cast c JOIN pg_attribute a ON a.atttypid = c.casttarget
          WHERE c.oid >= 16384 AND a.attrelid = pg_event_trigger_table_rewrite_oid() AND NOT a.attisdropped))
      THEN
        PERFORM understudy_mirror.refuse(
          'a change of ' || pg_event_trigger_table_rewrite_oid()::regclass || ' that evaluates something for each row',
          'Add a column without it, update the rows, and set defaults and constraints then.');
      END IF;
      PERFORM set_config('understudy_mirror.rewritten', concat_ws(' ', current_setting('understudy_mirror.rewritten', true),
        pg_event_trigger_table_rewrite_oid()), true);
    END $$;

DROP EVENT TRIGGER IF EXISTS understudy_mirror_start;
DROP EVENT TRIGGER IF EXISTS understudy_mirror_end;
DROP EVENT TRIGGER IF EXISTS understudy_mirror_drop;
DROP EVENT TRIGGER IF EXISTS understudy_mirror_rewrite;
CREATE EVENT TRIGGER understudy_mirror_start ON ddl_command_start
  EXECUTE FUNCTION understudy_mirror.define();
CREATE EVENT TRIGGER understudy_mirror_end ON ddl_command_end EXECUTE FUNCTION understudy_mirror.define();
CREATE EVENT TRIGGER understudy_mirror_drop ON sql_drop EXECUTE FUNCTION understudy_mirror.define();
CREATE EVENT TRIGGER understudy_mirror_rewrite ON table_rewrite EXECUTE FUNCTION understudy_mirror.rewritten();
ALTER EVENT TRIGGER understudy_mirror_start ENABLE ALWAYS;
ALTER EVENT TRIGGER understudy_mirror_end ENABLE ALWAYS;
ALTER EVENT TRIGGER understudy_mirror_drop ENABLE ALWAYS;
ALTER EVENT TRIGGER understudy_mirror_rewrite ENABLE ALWAYS;
SELECT understudy_mirror.identify();
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname OPERATOR(pg_catalog.=) 'understudy_mirror') THEN
    CREATE PUBLICATION understudy_mirror FOR ALL TABLES;
  END IF;
END $$;

-- Empties tables together, which no right to write rows includes. What clients have defined can call it as well, in a session that
-- writes rows: it takes tables, never a text, and no trigger fires.
DROP FUNCTION IF EXISTS understudy_mirror.truncate(text, boolean);
CREATE OR REPLACE FUNCTION understudy_mirror.truncate(tables regclass[], restarts boolean) RETURNS void
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = 'replica'
  AS $$
    DECLARE
      named CONSTANT text := string_agg(format('ONLY %s', t), ', ') FROM unnest(tables) t;
    BEGIN
      IF EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY (tables)
        AND (c.oid < 16384 OR c.relnamespace = 'understudy_mirror'::regnamespace))
      THEN
        RAISE insufficient_privilege USING MESSAGE = 'only tables of clients are emptied';
      END IF;
      EXECUTE format('TRUNCATE %s %s', named, CASE WHEN restarts THEN 'RESTART IDENTITY' ELSE '' END);
    END $$;
REVOKE EXECUTE ON FUNCTION understudy_mirror.truncate(regclass[], boolean) FROM PUBLIC;

-- Hash of the secret by which a manager's own sessions write rows.
CREATE TABLE IF NOT EXISTS understudy_mirror.secret (hash bytea PRIMARY KEY);

-- Lets only superusers write what the manager goes by: whoever may write all rows may not, because what clients have defined runs as
-- that role.
CREATE OR REPLACE FUNCTION understudy_mirror.keep() RETURNS trigger
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
  AS $$
    BEGIN
      IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        RAISE insufficient_privilege USING MESSAGE = format('only the manager writes %s', TG_RELID::regclass);
      END IF;
      RETURN NULL;
    END $$;
DO $$
  DECLARE
    kept pg_catalog.text;
  BEGIN
    FOREACH kept IN ARRAY ARRAY['state', 'secret', 'served'] LOOP
      EXECUTE pg_catalog.format('DROP TRIGGER IF EXISTS keep ON understudy_mirror.%I', kept);
      EXECUTE pg_catalog.format('CREATE TRIGGER keep BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON understudy_mirror.%I '
        'FOR EACH STATEMENT EXECUTE FUNCTION understudy_mirror.keep()', kept);
      EXECUTE pg_catalog.format('ALTER TABLE understudy_mirror.%I ENABLE ALWAYS TRIGGER keep', kept);
    END LOOP;
  END $$;

-- Executes a statement that concerns one row, as the role that writes rows, which the function is given to. Sessions of deputies call
-- it: what clients have defined may run there, and knows no secret.
CREATE OR REPLACE FUNCTION understudy_mirror.write(secret text, said text) RETURNS void
  LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO' SET IntervalStyle = 'postgres' SET TimeZone = 'UTC' SET lc_monetary = 'C'
  SET xmloption = 'content'
  AS $$
    DECLARE
      done pg_catalog.int8;
    BEGIN
      IF NOT EXISTS (SELECT FROM understudy_mirror.secret s
        WHERE s.hash OPERATOR(pg_catalog.=) pg_catalog.sha256(secret::pg_catalog.bytea))
      THEN
        RAISE insufficient_privilege USING MESSAGE = 'only the manager writes rows';
      END IF;
      EXECUTE said;
      GET DIAGNOSTICS done = ROW_COUNT;
      IF done OPERATOR(pg_catalog.<>) 1 THEN
        RAISE EXCEPTION USING MESSAGE = pg_catalog.format('%s rows in place of one: %s', done, pg_catalog."left"(said, 300));
      END IF;
    END $$;

-- The text of privileges, which is the same on both members.
CREATE OR REPLACE FUNCTION understudy_mirror.acl(items aclitem[]) RETURNS text
  LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
  AS $$
    SELECT string_agg(concat_ws(' ', CASE grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee) END, privilege_type, is_grantable,
      pg_get_userbyid(grantor)), ', ' ORDER BY pg_get_userbyid(grantee), privilege_type, is_grantable, pg_get_userbyid(grantor))
    FROM aclexplode(items) WHERE pg_get_userbyid(grantee) !~ '^understudy_as_'
  $$;
