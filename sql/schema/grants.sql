-- Who may see what: the owner of the relation, who may act for him, and pg_monitor.

ALTER TABLE policy ENABLE ROW LEVEL SECURITY;
CREATE POLICY visible ON policy FOR SELECT USING (
    (SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) relation)
    OR pg_catalog.pg_has_role('pg_monitor', 'USAGE'));
COMMENT ON POLICY visible ON policy IS 'Policies of relations whose owner one may act for; members of pg_monitor see all.';

ALTER TABLE event ENABLE ROW LEVEL SECURITY;
CREATE POLICY visible ON event FOR SELECT USING (
    pg_catalog.pg_has_role(owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE'));
COMMENT ON POLICY visible ON event IS 'Events of owners for whom one may act; members of pg_monitor see all.';

ALTER TABLE failure ENABLE ROW LEVEL SECURITY;
CREATE POLICY visible ON failure FOR SELECT USING (
    EXISTS (SELECT FROM @extschema@.policy p WHERE p.name OPERATOR(pg_catalog.=) failure.policy));
COMMENT ON POLICY visible ON failure IS 'Failures of the policies that one sees.';

ALTER TABLE consumer ENABLE ROW LEVEL SECURITY;
CREATE POLICY visible ON consumer FOR SELECT USING (
    pg_catalog.pg_has_role(owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE'));
COMMENT ON POLICY visible ON consumer IS 'Consumers of roles for which one may act; members of pg_monitor see all.';

ALTER TABLE progress ENABLE ROW LEVEL SECURITY;
CREATE POLICY visible ON progress FOR SELECT USING (
    EXISTS (SELECT FROM @extschema@.policy p WHERE p.name OPERATOR(pg_catalog.=) progress.policy));
COMMENT ON POLICY visible ON progress IS 'Progress of the policies that one sees.';

REVOKE ALL ON ALL TABLES IN SCHEMA @extschema@ FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA @extschema@ FROM PUBLIC;
GRANT USAGE ON SCHEMA @extschema@ TO PUBLIC;
-- For pg_dump --enable-row-security by who is no superuser.
GRANT SELECT ON SEQUENCE event_id_seq TO pg_database_owner;
GRANT SELECT ON policy, event, failure, progress, consumer, consumers, status, lateness, workers TO PUBLIC;
