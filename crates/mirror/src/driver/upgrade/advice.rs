//! Lines that an operator copies: what a mirror needs before an upgrade, and after it.

use super::Side;
use crate::driver::config::Target;

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
    let (manager, host, port, user) = (&side.manager, &target.host, target.port, &target.user);
    let text = format!(
        "# On the machine of the member of {manager} ({host}, port {port}), with Debian's packages:\n\
         OLD={old}\n\
         {new}\n\
         systemctl stop understudy-mirror@app            # the manager {manager}; app is the name of its file\n\
         systemctl disable --now postgresql@$OLD-main    # its server; the data stays until you remove it\n\
         apt-get install postgresql-$NEW                 # makes an empty server\n\
         pg_conftool $NEW main set port {port}\n\
         pg_conftool $NEW main set listen_addresses '*'\n\
         pg_conftool $NEW main set wal_level logical\n\
         cp -p /etc/postgresql/$OLD/main/pg_hba.conf /etc/postgresql/$NEW/main/\n\
         systemctl restart postgresql@$NEW-main\n\
         sudo -u postgres psql -p {port} -c '\\password {user}'   # the password that the managers' files have\n\
         # In [mirror] of both managers' files: bin = \"/usr/lib/postgresql/VERSION/bin\", of the new version. Then:\n\
         systemctl start understudy-mirror@app           # the member is filled while the other one serves"
    );
    text.lines().map(ToOwned::to_owned).collect()
}

/// Lines that make a mirror of a member that has no second one.
pub fn second_member() -> Vec<String> {
    let text = "# 1. Make an empty server of the new version, with wal_level = logical.\n\
         # 2. In [mirror] of this manager's file, put these lines in place of single = true:\n\
         first = true\n\
         peer = \"ADDRESS:7301\"\n\
         other_member = \"host=ADDRESS user=postgres password=PASSWORD dbname=NAME\"\n\
         # 3. Write the file of the second manager, which has peer and other_member the other way round, and no first.\n\
         # 4. Then:\n\
         understudy mirror check --config FILE\n\
         understudy mirror init --config FILE\n\
         understudy mirror run --config FILE              # beside each of both members; the second one is filled";
    text.lines().map(ToOwned::to_owned).collect()
}
