//! Authentication of a request by a user list (HAProxy configuration manual 7.3.6).

use std::borrow::Cow;
use std::sync::Arc;

use super::args::Args;
use super::code::{Compiled, FetchCode};
use crate::auth::UserList;
use crate::sample::basic_credentials;
use crate::sample::field::Cursor;
use crate::sample::value::Value;
use crate::stream::StreamContext;

pub(super) fn http_auth(args: &Args<'_>) -> Compiled {
    of_list(args, Gives::Truth)
}

pub(super) fn http_auth_group(args: &Args<'_>) -> Compiled {
    of_list(args, Gives::User)
}

fn of_list(args: &Args<'_>, gives: Gives) -> Compiled {
    let name = args.str(0)?.unwrap_or_default();
    let lists = args.scope.directory.map(|directory| &directory.user_lists);
    let list = lists.and_then(|lists| lists.get(name)).ok_or_else(|| format!("no userlist is named '{name}'"))?;
    Ok(FetchCode::Auth(AuthFetch { list: list.clone(), gives }))
}

/// `http_auth` and `http_auth_group`.
pub struct AuthFetch {
    list: Arc<UserList>,
    gives: Gives,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gives {
    /// Whether the password is right.
    Truth,
    /// The user.
    User,
    /// Each of the user's groups.
    Groups,
}

impl AuthFetch {
    /// Returns the user list.
    pub(crate) fn list(&self) -> &Arc<UserList> {
        &self.list
    }

    /// Compares the patterns of the condition with the user's groups.
    pub(crate) fn look_at_groups(&mut self) {
        if self.gives == Gives::User {
            self.gives = Gives::Groups;
        }
    }

    pub(super) fn is_multiple(&self) -> bool {
        self.gives == Gives::Groups
    }

    fn user(&self, cx: &StreamContext) -> Option<(&str, &[String])> {
        self.list.user(&basic_credentials(cx)?, cx.auth.as_ref())
    }

    pub(super) fn fetch<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        match self.gives {
            Gives::Truth => {
                basic_credentials(cx)?;
                Some(Value::Bool(self.user(cx).is_some()))
            }
            Gives::User => self.user(cx).map(|(name, _)| Value::Str(Cow::Borrowed(name.as_bytes()))),
            Gives::Groups => self.fetch_next(cx, &mut Cursor::default()),
        }
    }

    pub(super) fn fetch_next<'a>(&'a self, cx: &'a StreamContext, cursor: &mut Cursor) -> Option<Value<'a>> {
        let (_, groups) = self.user(cx)?;
        let group = groups.get(cursor.index)?;
        cursor.index += 1;
        Some(Value::Str(Cow::Borrowed(group.as_bytes())))
    }
}

impl std::fmt::Debug for AuthFetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthFetch").finish_non_exhaustive()
    }
}
