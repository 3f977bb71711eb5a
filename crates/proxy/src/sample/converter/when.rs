//! Conditions of the converter `when`, which passes a sample on where one holds.

use super::super::acl::AclCode;
use crate::process::Phase;
use crate::stream::StreamContext;

/// What must hold.
#[derive(Clone)]
pub enum When {
    /// `stopping`: the process ends.
    Stopping,
    /// `error`: as `dontlog-normal` sees it.
    Error,
    /// `forwarded`: there is a connection to a server.
    Forwarded,
    /// `toapplet`: something inside the process answers.
    ToApplet,
    /// `processed`: one of both.
    Processed,
    /// `acl`: an ACL of the section matches.
    Acl(AclCode),
}

impl When {
    /// Whether it holds now.
    pub(super) fn holds(&self, cx: &StreamContext) -> bool {
        let forwarded = || cx.log.connect_done.is_some();
        let to_applet = || cx.log.applet.is_some();
        match self {
            When::Stopping => cx.frontend.directory.process.phase() != Phase::Serving,
            When::Error => cx.has_failed(),
            When::Forwarded => forwarded(),
            When::ToApplet => to_applet(),
            When::Processed => forwarded() || to_applet(),
            When::Acl(acl) => acl.matches(cx),
        }
    }
}
