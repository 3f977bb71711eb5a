//! On whose behalf a command runs: it carries that with it, on whatever thread it runs, in a transaction or in a script.

/// On whose behalf a command runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Behalf {
    /// Whether its accesses do not change LRU and LFU data: CLIENT NO-TOUCH.
    pub(crate) is_traceless: bool,
    /// Whether the master of this replica has sent it: it is never refused, and finds what has expired by the clock here,
    /// because the master says when that is removed.
    pub(crate) is_masters: bool,
    /// Whether it is remembered which keys it reads: CLIENT TRACKING.
    pub(crate) tracks: bool,
    /// The lower half of the client's number; 0: none.
    pub(crate) client: u32,
}

impl Behalf {
    /// That of a client.
    pub(crate) const CLIENT: Behalf = Behalf { is_traceless: false, is_masters: false, tracks: false, client: 0 };
    /// That of the master.
    pub(crate) const MASTER: Behalf = Behalf { is_masters: true, ..Behalf::CLIENT };

    /// Returns that of the client with this number.
    pub(crate) fn of_client(number: u64) -> Behalf {
        Behalf { client: number as u32, ..Behalf::CLIENT }
    }

    /// Returns that of the same client for commands whose keys it does not read.
    pub(crate) fn untracked(self) -> Behalf {
        Behalf { tracks: false, ..self }
    }
}
