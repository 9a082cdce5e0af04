//! Who a server runs as: never root.

use std::ffi::CString;

use nix::unistd::{Gid, Uid, User, getgrouplist};

use super::{ChildError, Result};

/// A user to become before a program is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAs {
    /// The user.
    pub uid: Uid,
    /// Its primary group.
    pub gid: Gid,
    /// All its groups (a server may read keys through one of them).
    pub groups: Vec<Gid>,
}

impl RunAs {
    /// Resolves `user`; `None` if this process is not root, so that nothing can or must change.
    ///
    /// # Errors
    /// [`ChildError::NoUser`], or [`ChildError::Root`] if the user is root itself.
    pub fn resolve(user: &str) -> Result<Option<RunAs>> {
        if !Uid::effective().is_root() {
            return Ok(None);
        }
        let no_user = || ChildError::NoUser {
            user: user.to_owned(),
        };
        let found = User::from_name(user)
            .map_err(|e| ChildError::system(format!("cannot look up user \"{user}\""), e))?
            .ok_or_else(no_user)?;
        if found.uid.is_root() {
            return Err(ChildError::Root);
        }
        let name = CString::new(user).map_err(|_| no_user())?;
        let groups = getgrouplist(&name, found.gid).map_err(|e| {
            ChildError::system(format!("cannot look up the groups of \"{user}\""), e)
        })?;
        Ok(Some(RunAs {
            uid: found.uid,
            gid: found.gid,
            groups,
        }))
    }

    /// The owner that its files need.
    pub fn owner(&self) -> (Uid, Gid) {
        (self.uid, self.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_refused_and_unknown_users_are_named() {
        if !Uid::effective().is_root() {
            assert_eq!(RunAs::resolve("whoever").unwrap(), None);
            return;
        }
        assert!(matches!(RunAs::resolve("root"), Err(ChildError::Root)));
        let error = RunAs::resolve("nobody-of-this-name").unwrap_err();
        assert!(error.to_string().contains("nobody-of-this-name"));
        assert!(error.hint().is_some_and(|hint| hint.contains("run_as")));
    }
}
