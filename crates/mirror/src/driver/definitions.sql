-- What is defined in a member's database and for it, as texts that are the same on both members: kind, name, and what it is. Read in a
-- session without a search path, so that names are qualified. OWN stands for the roles that managers log in as.
WITH
schemas AS (SELECT oid, nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'understudy_mirror')),
relations AS (
  SELECT c.*, format('%I.%I', s.nspname, c.relname) AS name FROM pg_class c JOIN schemas s ON s.oid = c.relnamespace
  WHERE c.relpersistence <> 't'),
roles AS (
  SELECT * FROM pg_authid WHERE rolname !~ '^(pg|understudy_as)_' AND rolname <> ALL (OWN::text[])),
said (kind, name, said) AS (
  SELECT 'schema', quote_ident(n.nspname), concat_ws(' ', pg_get_userbyid(n.nspowner),
    understudy_mirror.acl(coalesce(n.nspacl, acldefault('n', n.nspowner))))
  FROM pg_namespace n JOIN schemas USING (oid)
  UNION ALL
  SELECT 'relation', name, concat_ws(' ', relkind, relpersistence, pg_get_userbyid(relowner), relrowsecurity, relforcerowsecurity,
    relreplident, relispopulated, (SELECT amname FROM pg_am a WHERE a.oid = relam),
    (SELECT spcname FROM pg_tablespace t WHERE t.oid = reltablespace), reloftype::regtype, pg_get_expr(relpartbound, c.oid),
    CASE WHEN relkind = 'p' THEN pg_get_partkeydef(c.oid) END,
    (SELECT string_agg(o, ' ' ORDER BY o) FROM unnest(reloptions) o),
    understudy_mirror.acl(coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner))))
  FROM relations c WHERE relkind NOT IN ('i', 'I', 't')
  UNION ALL
  SELECT 'column', format('%s.%I', c.name, a.attname), concat_ws(' ',
    -- A copy of a table that inherits has inherited columns first.
    CASE WHEN c.relispartition OR c.oid NOT IN (SELECT inhrelid FROM pg_inherits) THEN
      row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum) END,
    format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.attstorage, a.attcompression, a.attislocal,
    a.attinhcount, coalesce(a.attstattarget, -1), a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid),
    array_to_string(a.attoptions, ' '), array_to_string(a.attfdwoptions, ' '), understudy_mirror.acl(a.attacl))
  FROM relations c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'c') AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT 'constraint', format('%s of %s', quote_ident(k.conname), coalesce(c.name, k.contypid::regtype::text)),
    -- Not by whom it was inherited, which a dump says in another way.
    concat_ws(' ', pg_get_constraintdef(k.oid), k.convalidated)
  FROM pg_constraint k LEFT JOIN relations c ON c.oid = k.conrelid
  WHERE k.connamespace IN (SELECT oid FROM schemas) AND (k.conrelid = 0 OR c.oid IS NOT NULL)
  UNION ALL
  -- One that is being built, or could not be, is no index yet: others see it before the command is logged.
  SELECT 'index', c.name, concat_ws(' ', pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisreplident,
    (SELECT spcname FROM pg_tablespace t WHERE t.oid = c.reltablespace))
  FROM relations c JOIN pg_index i ON i.indexrelid = c.oid WHERE i.indisvalid OR c.relkind = 'I'
  UNION ALL
  SELECT 'inheritance', format('%s of %s', c.name, i.inhparent::regclass), i.inhseqno::text
  FROM relations c JOIN pg_inherits i ON i.inhrelid = c.oid
  UNION ALL
  SELECT 'view', name, pg_get_viewdef(oid) FROM relations WHERE relkind IN ('v', 'm')
  UNION ALL
  SELECT 'rule', format('%I of %s', r.rulename, c.name), concat_ws(' ', r.ev_enabled, pg_get_ruledef(r.oid))
  FROM relations c JOIN pg_rewrite r ON r.ev_class = c.oid WHERE r.rulename <> '_RETURN'
  UNION ALL
  SELECT 'trigger', format('%I of %s', t.tgname, c.name), concat_ws(' ', t.tgenabled, pg_get_triggerdef(t.oid))
  FROM relations c JOIN pg_trigger t ON t.tgrelid = c.oid WHERE NOT t.tgisinternal
  UNION ALL
  SELECT 'triggers of constraints', c.name, string_agg(t.tgenabled::text, '' ORDER BY t.tgenabled)
  FROM relations c JOIN pg_trigger t ON t.tgrelid = c.oid WHERE t.tgisinternal GROUP BY c.name
  UNION ALL
  SELECT 'policy', format('%I of %s', p.polname, c.name), concat_ws(' ', p.polcmd, p.polpermissive,
    (SELECT string_agg(CASE r WHEN 0 THEN 'public' ELSE pg_get_userbyid(r) END, ' ' ORDER BY pg_get_userbyid(r)) FROM unnest(p.polroles) r),
    pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
  FROM relations c JOIN pg_policy p ON p.polrelid = c.oid
  UNION ALL
  SELECT 'sequence', c.name, concat_ws(' ', s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache, s.seqcycle,
    (SELECT concat_ws(' ', d.refobjid::regclass, d.refobjsubid <> 0, d.deptype) FROM pg_depend d
     WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')))
  FROM relations c JOIN pg_sequence s ON s.seqrelid = c.oid
  UNION ALL
  SELECT 'function', p.oid::regprocedure::text, concat_ws(' ', p.prokind, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
    l.lanname, p.procost, p.prorows, p.prosupport, p.prosecdef, p.proleakproof, p.proisstrict, p.provolatile, p.proparallel, p.prosrc,
    p.probin, pg_get_function_sqlbody(p.oid), array_to_string(p.proconfig, ' '), array_to_string(p.protrftypes::regtype[], ' '),
    pg_get_userbyid(p.proowner), understudy_mirror.acl(coalesce(p.proacl, acldefault('f', p.proowner))),
    (SELECT concat_ws(' ', a.aggkind, a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn, a.aggdeserialfn, a.aggmtransfn,
       a.aggminvtransfn, a.aggmfinalfn, a.aggsortop::regoperator, a.aggtranstype::regtype, a.aggmtranstype::regtype, a.agginitval,
       a.aggminitval, a.aggfinalmodify) FROM pg_aggregate a WHERE a.aggfnoid = p.oid))
  FROM pg_proc p JOIN schemas s ON s.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
  UNION ALL
  SELECT 'type', format_type(t.oid, NULL), concat_ws(' ', t.typtype, format_type(t.typbasetype, t.typtypmod), t.typnotnull, t.typdefault,
    t.typcollation::regcollation, t.typlen, t.typinput, t.typoutput, t.typstorage, pg_get_userbyid(t.typowner),
    understudy_mirror.acl(coalesce(t.typacl, acldefault('T', t.typowner))),
    (SELECT string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid),
    (SELECT concat_ws(' ', r.rngsubtype::regtype, r.rngcollation::regcollation, r.rngcanonical, r.rngsubdiff, r.rngmultitypid::regtype)
     FROM pg_range r WHERE r.rngtypid = t.oid))
  FROM pg_type t JOIN schemas s ON s.oid = t.typnamespace
  WHERE t.typcategory <> 'A' AND (t.typrelid = 0 OR EXISTS (SELECT FROM pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c'))
  UNION ALL
  SELECT 'operator', o.oid::regoperator::text, concat_ws(' ', o.oprcode, o.oprcom::regoperator, o.oprnegate::regoperator, o.oprrest,
    o.oprjoin, o.oprcanmerge, o.oprcanhash, pg_get_userbyid(o.oprowner))
  FROM pg_operator o JOIN schemas s ON s.oid = o.oprnamespace
  UNION ALL
  SELECT 'operator class', pg_describe_object('pg_opclass'::regclass, o.oid, 0), concat_ws(' ', o.opcintype::regtype, o.opcdefault,
    o.opckeytype::regtype, pg_get_userbyid(o.opcowner))
  FROM pg_opclass o JOIN schemas s ON s.oid = o.opcnamespace
  UNION ALL
  SELECT 'operator family', pg_describe_object('pg_opfamily'::regclass, f.oid, 0), concat_ws(' ', pg_get_userbyid(f.opfowner),
    (SELECT string_agg(pg_describe_object('pg_amop'::regclass, a.oid, 0), ', ' ORDER BY 1) FROM pg_amop a WHERE a.amopfamily = f.oid),
    (SELECT string_agg(pg_describe_object('pg_amproc'::regclass, a.oid, 0), ', ' ORDER BY 1) FROM pg_amproc a WHERE a.amprocfamily = f.oid))
  FROM pg_opfamily f JOIN schemas s ON s.oid = f.opfnamespace
  UNION ALL
  SELECT 'cast', format('%s to %s', castsource::regtype, casttarget::regtype), concat_ws(' ', castfunc::regprocedure, castcontext, castmethod)
  FROM pg_cast WHERE oid >= 16384
  UNION ALL
  SELECT 'collation', c.oid::regcollation::text, concat_ws(' ', c.collprovider, c.collisdeterministic, c.collencoding, c.collcollate,
    c.collctype, pg_get_userbyid(c.collowner))
  FROM pg_collation c JOIN schemas s ON s.oid = c.collnamespace
  UNION ALL
  SELECT 'statistics', o.oid::regclass::text || '.' || x.stxname, concat_ws(' ', pg_get_statisticsobjdef(x.oid), pg_get_userbyid(x.stxowner))
  FROM pg_statistic_ext x JOIN relations o ON o.oid = x.stxrelid
  UNION ALL
  SELECT 'extension', e.extname, concat_ws(' ', e.extversion, e.extnamespace::regnamespace) FROM pg_extension e
  UNION ALL
  SELECT 'language', l.lanname, concat_ws(' ', l.lanpltrusted, l.lanplcallfoid::regproc, pg_get_userbyid(l.lanowner),
    understudy_mirror.acl(coalesce(l.lanacl, acldefault('l', l.lanowner))))
  FROM pg_language l
  UNION ALL
  SELECT 'foreign server', s.srvname, concat_ws(' ', w.fdwname, s.srvtype, s.srvversion, array_to_string(s.srvoptions, ' '),
    array_to_string(w.fdwoptions, ' '), pg_get_userbyid(s.srvowner), understudy_mirror.acl(coalesce(s.srvacl, acldefault('S', s.srvowner))))
  FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw
  UNION ALL
  SELECT 'foreign table', c.name, concat_ws(' ', s.srvname, array_to_string(f.ftoptions, ' '))
  FROM pg_foreign_table f JOIN relations c ON c.oid = f.ftrelid JOIN pg_foreign_server s ON s.oid = f.ftserver
  UNION ALL
  SELECT 'user mapping', format('%s of %I', usename, srvname), md5(array_to_string(umoptions, ' ')) FROM pg_user_mappings
  UNION ALL
  SELECT 'text search', pg_describe_object(d.classid, d.oid, 0), d.said FROM (
    SELECT 'pg_ts_config'::regclass AS classid, oid, cfgnamespace AS nsp, concat_ws(' ', cfgparser::text, (SELECT string_agg(
      concat_ws(' ', m.maptokentype, m.mapseqno, m.mapdict::regdictionary), ', ' ORDER BY m.maptokentype, m.mapseqno)
      FROM pg_ts_config_map m WHERE m.mapcfg = c.oid)) AS said FROM pg_ts_config c
    UNION ALL SELECT 'pg_ts_dict'::regclass, oid, dictnamespace, dictinitoption FROM pg_ts_dict
    UNION ALL SELECT 'pg_ts_parser'::regclass, oid, prsnamespace, prstoken::text FROM pg_ts_parser
    UNION ALL SELECT 'pg_conversion'::regclass, oid, connamespace, conproc::text FROM pg_conversion) d
  WHERE d.nsp IN (SELECT oid FROM schemas)
  UNION ALL
  SELECT 'event trigger', e.evtname, concat_ws(' ', e.evtevent, e.evtfoid::regproc, e.evtenabled, array_to_string(e.evttags, ' '),
    pg_get_userbyid(e.evtowner))
  FROM pg_event_trigger e WHERE e.evtname !~ '^understudy_mirror'
  UNION ALL
  SELECT 'publication', p.pubname, concat_ws(' ', p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,
    (SELECT string_agg(r.prrelid::regclass::text, ', ' ORDER BY r.prrelid::regclass::text) FROM pg_publication_rel r WHERE r.prpubid = p.oid))
  FROM pg_publication p WHERE p.pubname <> 'understudy_mirror'
  UNION ALL
  SELECT 'subscription', s.subname, concat_ws(' ', s.subenabled, array_to_string(s.subpublications, ' '))
  FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid WHERE d.datname = current_database()
  UNION ALL
  SELECT 'default privileges', format('%s %s %s', pg_get_userbyid(d.defaclrole), d.defaclnamespace::regnamespace, d.defaclobjtype),
    understudy_mirror.acl(d.defaclacl)
  FROM pg_default_acl d
  UNION ALL
  SELECT 'comment', pg_describe_object(d.classoid, d.objoid, d.objsubid), d.description
  FROM pg_description d
  WHERE (d.objoid >= 16384 OR d.classoid = 'pg_namespace'::regclass)
    AND pg_describe_object(d.classoid, d.objoid, d.objsubid) !~ 'understudy_mirror|^(schema|toast table|.* in schema) pg_toast|\mpg_temp_'
  UNION ALL
  SELECT 'security label', pg_describe_object(l.classoid, l.objoid, l.objsubid), concat_ws(' ', l.provider, l.label) FROM pg_seclabel l
  UNION ALL
  SELECT 'large objects', 'all', (SELECT string_agg(concat_ws(' ', oid, pg_get_userbyid(lomowner)), ', ' ORDER BY oid) FROM pg_largeobject_metadata)
  UNION ALL
  SELECT 'database', 'this', concat_ws(' ', pg_get_userbyid(d.datdba), d.encoding, d.datcollate, d.datctype, d.datconnlimit,
    understudy_mirror.acl(coalesce(d.datacl, acldefault('d', d.datdba))), shobj_description(d.oid, 'pg_database'))
  FROM pg_database d WHERE d.datname = current_database()
  UNION ALL
  SELECT 'settings', format('%s%s', CASE s.setdatabase WHEN 0 THEN '' ELSE 'here ' END, coalesce(r.rolname, 'all')),
    (SELECT string_agg(c, ', ' ORDER BY c) FROM unnest(s.setconfig) c)
  FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole
  WHERE (s.setdatabase = 0 OR s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
    AND (s.setrole = 0 OR r.rolname !~ '^understudy_as_' AND r.rolname <> ALL (OWN::text[]))
  UNION ALL
  SELECT 'role', quote_ident(rolname), concat_ws(' ', rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication,
    rolbypassrls, rolconnlimit, extract(epoch FROM rolvaliduntil), md5(rolpassword), shobj_description(oid, 'pg_authid'))
  FROM roles
  UNION ALL
  SELECT 'membership', format('%I of %I', u.rolname, r.rolname), string_agg(m.admin_option::text, ' ' ORDER BY m.admin_option)
  FROM pg_auth_members m JOIN roles u ON u.oid = m.member JOIN pg_roles r ON r.oid = m.roleid GROUP BY 2
)
