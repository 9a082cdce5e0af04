//! Lines that an operator copies: what a mirror needs before an upgrade, and after it.

use super::Side;
use crate::driver::target::Target;

/// Lines that replace the standby's server by one of a newer version, which nobody has named.
pub fn newer_member(standby: &Side, target: &Target) -> Vec<String> {
    lines(standby, target, "NEW=18   # the new major version")
}

/// Lines that replace the older member's server by one of the version of the newer one.
pub fn replacement(older: &Side, newer: &Side, target: &Target) -> Vec<String> {
    lines(older, target, &format!("NEW={}", major(newer)))
}

fn major(side: &Side) -> &str {
    side.version.split('.').next().unwrap_or_default()
}

fn lines(side: &Side, target: &Target, new: &str) -> Vec<String> {
    let old = major(side);
    let manager = &side.manager;
    let (host, port) = target.place();
    let role = role(target);
    // Debian starts at boot whatever start.conf says, which systemctl disable does not change.
    let text = format!(
        "# On the machine of the member of {manager} ({host}, port {port}), with Debian's packages:\n\
         OLD={old}\n\
         {new}\n\
         systemctl stop understudy-mirror@app            # the manager {manager}; app is the name of its file\n\
         echo manual > /etc/postgresql/$OLD/main/start.conf   # the old server is not started at boot any more\n\
         systemctl daemon-reload\n\
         systemctl stop postgresql@$OLD-main             # its data stays until pg_dropcluster $OLD main\n\
         apt-get install postgresql-$NEW                 # makes an empty server\n\
         test -d /etc/postgresql/$NEW/main || pg_createcluster $NEW main\n\
         pg_conftool $NEW main set port {port}\n\
         pg_conftool $NEW main set listen_addresses '*'\n\
         pg_conftool $NEW main set wal_level logical\n\
         # Settings of your own, such as max_slot_wal_keep_size and ssl_cert_file: in /etc/postgresql/$NEW/main/postgresql.conf.\n\
         systemctl restart postgresql@$NEW-main\n\
         {role}\
         cp -p /etc/postgresql/$OLD/main/pg_hba.conf /etc/postgresql/$OLD/main/pg_ident.conf /etc/postgresql/$NEW/main/\n\
         systemctl reload postgresql@$NEW-main\n\
         # In [mirror] of this manager's file, if it names bin: bin = \"/usr/lib/postgresql/VERSION/bin\", of the new version. Then:\n\
         systemctl start understudy-mirror@app           # the member is filled while the other one serves"
    );
    text.lines().map(ToOwned::to_owned).collect()
}

/// The line that gives an empty server the role that managers log in as. PostgreSQL's own is there, and may need a password. It comes
/// before the old pg_hba.conf, which may let nobody in without one.
fn role(target: &Target) -> String {
    let ((_, port), user) = (target.place(), &target.user);
    let password = "# the password that the managers' files have";
    match (user.as_str(), &target.password) {
        ("postgres", None) => String::new(),
        ("postgres", Some(_)) => {
            format!("runuser -u postgres -- psql -p {port} -c '\\password postgres'   {password}\n")
        }
        (_, None) => format!(
            "runuser -u postgres -- createuser -p {port} --superuser {}\n",
            quoted(user)
        ),
        (_, Some(_)) => format!(
            "runuser -u postgres -- createuser -p {port} --superuser --pwprompt {}   {password}\n",
            quoted(user)
        ),
    }
}

/// A word as a shell takes it for one.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Lines that make a mirror of a member that has no second one.
pub fn second_member() -> Vec<String> {
    let text = "# 1. Make an empty server of the new version, with wal_level = logical.\n\
         # 2. In [mirror] of this manager's file, put these lines in place of single = true. If peer_listen is on this machine alone,\n\
         #    give it an address that the second manager reaches, and set identity in [tls].\n\
         first = true\n\
         peer = \"ADDRESS:7301\"\n\
         other_member = \"host=ADDRESS user=postgres password=PASSWORD dbname=NAME\"\n\
         # 3. Write the file of the second manager, which has peer and other_member the other way round, and no first.\n\
         # 4. Then:\n\
         understudy mirror check --config FILE\n\
         understudy mirror create-log --config FILE\n\
         systemctl restart understudy-mirror@app          # this manager; app is the name of its file\n\
         systemctl enable --now understudy-mirror@app     # beside the second member, which is filled";
    text.lines().map(ToOwned::to_owned).collect()
}
