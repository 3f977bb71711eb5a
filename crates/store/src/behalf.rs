//! On whose behalf commands run.

/// On whose behalf a command runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Behalf {
    /// Whether its accesses do not change LRU and LFU data: CLIENT NO-TOUCH.
    pub(crate) is_traceless: bool,
    /// Whether the master of this replica has sent it: it is never refused, and finds what has expired by the clock here,
    /// because the master says when that is removed.
    pub(crate) is_masters: bool,
}

impl Behalf {
    /// That of a client.
    pub(crate) const CLIENT: Behalf = Behalf { is_traceless: false, is_masters: false };
    /// That of the master.
    pub(crate) const MASTER: Behalf = Behalf { is_traceless: false, is_masters: true };

    /// Returns that of a client whose accesses may change nothing.
    pub(crate) fn of_client(is_traceless: bool) -> Behalf {
        Behalf { is_traceless, ..Behalf::CLIENT }
    }
}
