//! What happens to the roles that own policies, and that no other owner notices.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{db_error, wait_for_value, wait_until};

use super::tenants::Tenants;

const SECOND: Duration = Duration::from_secs(1);

/// An order of this tenant that is due in a moment is cancelled.
fn assert_on_time(tenants: &mut Tenants, tenant: usize, id: i64) {
    let table = tenants.names[tenant].clone();
    tenants.fill(tenant, id..=id, "now() + interval '200 ms'");
    let status = format!("SELECT status FROM {table} WHERE id = {id}");
    wait_for_value(&mut tenants.superuser, &status, "cancelled".to_owned());
}

/// R20: renamed, without LOGIN, without a right to connect, expired: the owner's policy goes on, and so does the
/// other's, with the same workers.
#[test]
fn owner_who_may_not_log_in_any_more() {
    let mut tenants = Tenants::new(2, "");
    assert_on_time(&mut tenants, 0, 1);
    assert_on_time(&mut tenants, 1, 1);
    let pids = |client: &mut Client| -> Vec<i32> {
        let sql = "SELECT pid FROM expiry.workers WHERE database = current_database() ORDER BY pid";
        client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    };
    let before = pids(&mut tenants.superuser);
    assert_eq!(before.len(), 2);
    let (name, database) = (tenants.names[0].clone(), tenants.db.name.clone());
    let changes = [
        format!("ALTER ROLE {name} NOLOGIN"),
        format!("ALTER ROLE {name} VALID UNTIL '2000-01-01'"),
        format!("ALTER ROLE {name} CONNECTION LIMIT 0"),
        format!("REVOKE CONNECT ON DATABASE {database} FROM PUBLIC"),
        format!(
            "ALTER ROLE {name} SET search_path = nowhere; ALTER ROLE {name} SET default_transaction_read_only = on"
        ),
    ];
    for (id, change) in (2..).zip(changes) {
        tenants.superuser.batch_execute(&change).unwrap();
        assert_on_time(&mut tenants, 0, id);
        assert_on_time(&mut tenants, 1, id);
        // Also by a worker that starts after the change.
        tenants
            .superuser
            .batch_execute("SELECT expiry.stop_workers(); SELECT expiry.start_workers()")
            .unwrap();
        assert_on_time(&mut tenants, 0, id + 100);
        assert_on_time(&mut tenants, 1, id + 100);
    }
}

/// R20.
#[test]
fn owner_who_is_renamed() {
    let mut tenants = Tenants::new(2, "");
    assert_on_time(&mut tenants, 0, 1);
    assert_on_time(&mut tenants, 1, 1);
    let sql = "SELECT pid FROM expiry.workers WHERE database = current_database() ORDER BY pid";
    let pids: Vec<i32> = tenants.superuser.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    let (old, new) = (tenants.names[0].clone(), format!("New \"Name\" of {}", tenants.db.name));
    let quoted = format!("\"{}\"", new.replace('"', "\"\""));
    tenants.superuser.batch_execute(&format!("ALTER ROLE {old} RENAME TO {quoted}")).unwrap();
    assert_on_time(&mut tenants, 0, 2);
    assert_on_time(&mut tenants, 1, 2);
    let shown = format!("SELECT owner::text FROM expiry.policy WHERE name = '{old}'");
    wait_for_value(&mut tenants.superuser, &shown, new.clone());
    let workers = format!("SELECT count(*) FROM expiry.workers WHERE owner = '{}'", new.replace('\'', "''"));
    wait_for_value(&mut tenants.superuser, &workers, 1_i64);
    let after: Vec<i32> = tenants.superuser.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(after, pids);
    // A stranger who takes the old name gets nothing of it.
    tenants.superuser.batch_execute(&format!("CREATE ROLE {old}; SET ROLE {old}")).unwrap();
    for relation in ["policy", "event", "status", "progress"] {
        let sql = format!("SELECT count(*) FROM expiry.{relation}");
        assert_eq!(tenants.superuser.query_one(&sql, &[]).unwrap().get::<_, i64>(0), 0, "{relation}");
    }
    tenants
        .superuser
        .batch_execute(&format!("RESET ROLE; DROP ROLE {old}; ALTER ROLE {quoted} RENAME TO {old}"))
        .unwrap();
}

/// R20: a role that owns a policy's table cannot be dropped; with what it owns it goes, and the policy, its worker
/// and its failures too. Its events stay, for whoever sees all.
#[test]
fn owner_who_is_dropped() {
    let mut tenants = Tenants::new(3, "");
    for tenant in 0..3 {
        assert_on_time(&mut tenants, tenant, 1);
    }
    let (name, other) = (tenants.names[0].clone(), tenants.names[1].clone());
    let mut session = tenants.connect(0);
    session.batch_execute("SELECT expiry.subscribe('of_the_dropped', after => 0)").unwrap();
    drop(session);
    let error = db_error(tenants.superuser.batch_execute(&format!("DROP ROLE {name}")));
    assert_eq!(error.code().code(), "2BP01");
    assert_on_time(&mut tenants, 0, 2);

    tenants.superuser.batch_execute(&format!("BEGIN; DROP OWNED BY {name}; ROLLBACK")).unwrap();
    assert_on_time(&mut tenants, 0, 3);

    tenants.superuser.batch_execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}")).unwrap();
    assert_on_time(&mut tenants, 1, 2);
    assert_on_time(&mut tenants, 2, 2);
    let left = format!(
        "SELECT (SELECT count(*) FROM expiry.policy WHERE name = '{name}') + (SELECT count(*) FROM expiry.progress WHERE policy = '{name}')
              + (SELECT count(*) FROM expiry.failure WHERE policy = '{name}')"
    );
    wait_for_value(&mut tenants.superuser, &left, 0_i64);
    let workers = "SELECT count(*) FROM expiry.workers WHERE database = current_database()";
    wait_for_value(&mut tenants.superuser, workers, 2_i64);
    // What is left of the role: events, and a consumer. All views show them, to those who see all and to others.
    let events = format!("SELECT count(*) FROM expiry.event WHERE policy = '{name}'");
    assert_eq!(tenants.superuser.query_one(&events, &[]).unwrap().get::<_, i64>(0), 3);
    for relation in ["event", "consumers", "status", "workers", "lateness", "failure", "progress", "consumer"]
    {
        tenants.superuser.simple_query(&format!("SELECT * FROM expiry.{relation}")).unwrap();
        let mut session = tenants.connect(1);
        let sql = format!("SELECT count(*) FROM expiry.{relation} x WHERE x::text LIKE '%{name}%'");
        assert_eq!(session.query_one(&sql, &[]).unwrap().get::<_, i64>(0), 0, "{relation}");
    }
    tenants.superuser.batch_execute("SELECT expiry.unsubscribe('of_the_dropped')").unwrap();

    // A function's owner goes with the function: the policy stops with a reason, the others do not notice.
    let helper = format!("helper_{}", tenants.db.name);
    tenants
        .superuser
        .batch_execute(&format!(
            "CREATE ROLE {helper}; ALTER FUNCTION cancel_{other}(bigint[]) OWNER TO {helper}"
        ))
        .unwrap();
    assert_on_time(&mut tenants, 1, 3);
    tenants.superuser.batch_execute(&format!("DROP OWNED BY {helper}; DROP ROLE {helper}")).unwrap();
    let stopped = format!(
        "SELECT state || ' ' || substring(reason FROM 'SQLSTATE .....') FROM expiry.status WHERE name = '{other}'"
    );
    wait_for_value(&mut tenants.superuser, &stopped, "stopped SQLSTATE 42883".to_owned());
    assert_on_time(&mut tenants, 2, 3);
    tenants.names.remove(0);
}

/// R20: what is reassigned goes on under the new owner, with a worker of his, or of the one he has; nobody is late.
#[test]
fn owner_whose_things_are_reassigned() {
    let mut tenants = Tenants::new(3, "");
    for tenant in 0..3 {
        assert_on_time(&mut tenants, tenant, 1);
    }
    let names = tenants.names.clone();
    tenants
        .superuser
        .batch_execute(&format!(
            "ALTER TABLE {0} ADD by text; CREATE OR REPLACE FUNCTION cancel_{0}(ids bigint[]) RETURNS void LANGUAGE sql AS
                 $$ UPDATE {0} SET status = 'cancelled', by = current_user WHERE id = ANY (ids) $$",
            names[0]
        ))
        .unwrap();
    assert_on_time(&mut tenants, 0, 2);
    let heir = format!("heir_{}", tenants.db.name);
    tenants.superuser.batch_execute(&format!("CREATE ROLE {heir} NOLOGIN")).unwrap();
    // To one who has no policy yet, and then to one who has.
    for (id, from, to) in [(3, names[0].clone(), heir.clone()), (4, heir.clone(), names[1].clone())] {
        tenants.superuser.batch_execute(&format!("REASSIGN OWNED BY {from} TO {to}")).unwrap();
        for tenant in 0..3 {
            assert_on_time(&mut tenants, tenant, id);
        }
        let by = format!("SELECT by FROM {} WHERE id = {id}", names[0]);
        assert_eq!(tenants.superuser.query_one(&by, &[]).unwrap().get::<_, String>(0), to);
        let owner = format!("SELECT owner::text FROM expiry.policy WHERE name = '{}'", names[0]);
        wait_for_value(&mut tenants.superuser, &owner, to.clone());
        // Who may see its events from now on is the new owner.
        let event = format!(
            "SELECT pg_get_userbyid(owner)::text FROM expiry.event WHERE policy = '{}' AND key->>'id' = '{id}'",
            names[0]
        );
        assert_eq!(tenants.superuser.query_one(&event, &[]).unwrap().get::<_, String>(0), to);
    }
    tenants.superuser.batch_execute(&format!("DROP ROLE {heir}")).unwrap();
    let owners = "SELECT string_agg(DISTINCT owner, ', ' ORDER BY owner) FROM expiry.workers WHERE database = current_database()";
    wait_until("the workers of who has nothing any more to leave", 30 * SECOND, || {
        let shown: String = tenants.superuser.query_one(owners, &[]).unwrap().get(0);
        if shown == names[1..].join(", ") { Ok(()) } else { Err(shown) }
    });
}
