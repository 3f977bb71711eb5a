//! One request's life, from its first byte to its log line.

mod active;
mod card;
mod context;
mod filter;
mod flow;
pub(crate) mod http;
mod inspect;
mod inspection;
mod invalid;
mod kept;
mod listing;
mod relay;
mod scripted;
mod silence;
mod sockets;
pub(crate) mod tcp;
mod times;
mod traced;

pub(crate) use active::Active;
pub use card::{Card, Killer};
pub(crate) use card::{Cards, Reached};
pub(crate) use context::{
    APPLET_ROOM, Beginning, ClientTls, Http2Facts, LastServer, PrivateValues, ScriptCode, Waiting,
};
pub use context::{
    ActionOutcome, Applet, AppletIo, AppletWait, Bindings, BoundAction, BoundFilter, BoundService, Bursted, ChannelIo,
    FilterAnswer, FilterEvent, FilterMade, FilterPayload, FilterVerdict, Pending, ScriptAttempt, ScriptCall,
    ScriptFilter, ScriptHook, Scripts, StreamScripts,
};
pub use context::{AppletName, Endings, LogRecord, Overrides, RulePlace, StreamContext, UniqueId};
pub use context::{Attaching, Client, ExpectedHeaders};
pub use inspection::{Content, ContentForm, Inspection};
pub use invalid::{Fault, Invalid, LastInvalid, fuzz_invalid};
pub(crate) use kept::FreeList;
pub use listing::{Detail, Found, Selection, Which};
pub(crate) use listing::{PATIENCE, end_streams, shut_sessions};
pub use sockets::{Side, Sockets, TcpFigure};
pub use times::Timers;
