//! Variables (HAProxy configuration manual 2.8): values that rules and scripts keep under `scope.name`.
//!
//! Names are interned once, when a configuration is compiled or a script first uses one, so a rule compares 32-bit
//! ids. A stream has few variables: a scope is a vector that is searched from the front and whose memory is reused for
//! the worker's next stream. `sess.` variables belong to the session and are shared by its streams.
//! `proc.` variables belong to the process and outlive reloads; each has a lock of its own, found when the rule is
//! compiled.
//!
//! Limits: those of `tune.vars.*`, unlimited by default as in HAProxy; here one stream may keep [`STREAM_LIMIT`] bytes in
//! its scopes at most and the names of the process are at most [`NAMES_LIMIT`]. What does not fit is not set.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use sluicegate_config::model::{ParentScope, VarName, VarScope, VariableLimits};

use super::value::{Sample, Value};

/// The maximum number of bytes in the variables of one stream, including its session's.
pub const STREAM_LIMIT: usize = 1 << 20;
/// The maximum number of variable names in the process, because scripts can invent names.
pub const NAMES_LIMIT: usize = 65_536;
/// The maximum number of names that one thread caches for [`VarRef::parse`].
const REMEMBERED: usize = 1_024;
/// The size of one variable in addition to its bytes: its slot.
const SLOT_COST: usize = std::mem::size_of::<(NameId, Sample)>();

/// The size of one variable in addition to its bytes, as HAProxy counts it for `tune.vars.*`.
const COUNTED: usize = 80;

/// `tune.vars.*`, in the order of [`VariableLimits`]' fields; 0 is unlimited. They belong to the process, like the names.
static LIMITS: [AtomicUsize; 6] = [const { AtomicUsize::new(0) }; 6];

/// Whether any of them is limited.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);

/// The size of all `proc.` variables, as HAProxy counts it.
static PROCESS_SIZE: AtomicUsize = AtomicUsize::new(0);

/// Sets the limits of `tune.vars.*` for variables that are set from now on.
pub(crate) fn limit(limits: &VariableLimits) {
    let VariableLimits { global, process, session, transaction, message, check } = *limits;
    for (slot, limit) in LIMITS.iter().zip([global, process, session, transaction, message, check]) {
        slot.store(limit, Ordering::Relaxed);
    }
    IS_LIMITED.store(*limits != VariableLimits::default(), Ordering::Relaxed);
}

/// Returns the size of a `proc.` variable's value.
fn counted(value: Option<&Sample>) -> usize {
    value.map_or(0, |value| value.heap_len() + COUNTED)
}

/// An interned name, without its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameId(u32);

/// A `proc.` variable: one value for all workers.
#[derive(Debug, Default)]
pub struct ProcVariable(Mutex<Option<Sample>>);

impl ProcVariable {
    /// Returns its value.
    pub fn get(&self) -> Option<Sample> {
        self.0.lock().clone()
    }

    /// Sets or, with `None`, unsets it.
    pub fn set(&self, value: Option<Sample>) {
        PROCESS_SIZE.fetch_add(counted(value.as_ref()), Ordering::Relaxed);
        let old = std::mem::replace(&mut *self.0.lock(), value);
        PROCESS_SIZE.fetch_sub(counted(old.as_ref()), Ordering::Relaxed);
    }
}

/// The names, and the `proc.` values. They belong to the process, not to a configuration, because a session that
/// outlives a reload must find its variables under the ids with which it stored them.
#[derive(Default)]
struct Registry {
    names: HashMap<Arc<str>, NameId, RandomState>,
    process: HashMap<Arc<str>, Arc<ProcVariable>>,
    /// The same in the order in which they were named.
    in_order: Vec<(Arc<str>, Arc<ProcVariable>)>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

/// A variable that a rule or a script names, resolved.
#[derive(Clone, Debug)]
pub enum VarRef {
    /// `proc.`
    Process(Arc<ProcVariable>),
    /// `sess.`
    Session(NameId),
    /// `txn.`
    Transaction(NameId),
    /// `req.`
    Request(NameId),
    /// `res.`
    Response(NameId),
    /// `check.`
    Check(NameId),
    /// `psess.`, `ptxn.`, `preq.` or `pres.`: a variable of the parent stream.
    Parent(ParentScope, NameId),
}

/// Returns at most `most` of the process's variables, in the order in which they were named, from an index on.
pub(crate) fn of_process(from: usize, most: usize) -> Vec<(Arc<str>, Arc<ProcVariable>)> {
    let registry = REGISTRY.lock();
    registry.in_order.iter().skip(from).take(most).cloned().collect()
}

impl VarRef {
    /// Resolves a name and registers it; returns `None` if [`NAMES_LIMIT`] names are already registered.
    pub fn intern(name: &VarName) -> Option<VarRef> {
        let mut registry = REGISTRY.lock();
        if name.scope == VarScope::Proc {
            if let Some(known) = registry.process.get(&name.name) {
                return Some(VarRef::Process(known.clone()));
            }
            if registry.process.len() >= NAMES_LIMIT {
                return None;
            }
            let variable = Arc::new(ProcVariable::default());
            registry.process.insert(name.name.clone(), variable.clone());
            registry.in_order.push((name.name.clone(), variable.clone()));
            return Some(VarRef::Process(variable));
        }
        let id = match registry.names.get(&name.name) {
            Some(id) => *id,
            None if registry.names.len() >= NAMES_LIMIT => return None,
            None => {
                let id = NameId(registry.names.len() as u32);
                registry.names.insert(name.name.clone(), id);
                id
            }
        };
        Some(VarRef::of(name.scope, id))
    }

    /// Resolves a name that some rule or script has registered; a variable that was never named has no value.
    pub fn known(scope: VarScope, name: &str) -> Option<VarRef> {
        let registry = REGISTRY.lock();
        if scope == VarScope::Proc {
            return registry.process.get(name).cloned().map(VarRef::Process);
        }
        registry.names.get(name).map(|id| VarRef::of(scope, *id))
    }

    /// Resolves `scope.name` as written in scripts, and registers it. Scripts use a few names again and again, so each
    /// thread caches them and acquires the process's lock only once for each.
    pub fn parse(text: &str) -> Option<VarRef> {
        thread_local! {
            static KNOWN: RefCell<HashMap<Box<str>, VarRef>> = RefCell::default();
        }
        KNOWN.with_borrow_mut(|known| {
            if let Some(variable) = known.get(text) {
                return Some(variable.clone());
            }
            let (scope, name) = split(text)?;
            let variable = VarRef::intern(&VarName { scope, name: Arc::from(name) })?;
            if known.len() < REMEMBERED {
                known.insert(text.into(), variable.clone());
            }
            Some(variable)
        })
    }

    fn of(scope: VarScope, id: NameId) -> VarRef {
        match scope {
            VarScope::Sess => VarRef::Session(id),
            VarScope::Txn => VarRef::Transaction(id),
            VarScope::Req => VarRef::Request(id),
            VarScope::Res => VarRef::Response(id),
            VarScope::Check => VarRef::Check(id),
            VarScope::Parent(scope) => VarRef::Parent(scope, id),
            VarScope::Proc => unreachable!("the process scope has no ids"),
        }
    }
}

/// Splits `scope.name`; returns `None` unless the scope is known and the name consists of letters, digits, `_` and `.`.
pub fn split(text: &str) -> Option<(VarScope, &str)> {
    let (scope, name) = text.split_once('.')?;
    let scope = VarScope::named(scope)?;
    let valid = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
    valid.then_some((scope, name))
}

/// The variables of one scope.
#[derive(Clone, Debug, Default)]
pub struct VarMap {
    slots: Vec<(NameId, Sample)>,
    bytes: usize,
}

impl VarMap {
    fn get(&self, id: NameId) -> Option<&Sample> {
        self.slots.iter().find(|(known, _)| *known == id).map(|(_, value)| value)
    }

    fn set(&mut self, id: NameId, value: Sample) {
        let added = value.heap_len();
        if let Some((_, old)) = self.slots.iter_mut().find(|(known, _)| *known == id) {
            self.bytes = self.bytes - old.heap_len() + added;
            *old = value;
        } else {
            self.bytes += added + SLOT_COST;
            self.slots.push((id, value));
        }
    }

    fn unset(&mut self, id: NameId) {
        if let Some(index) = self.slots.iter().position(|(known, _)| *known == id) {
            let (_, old) = self.slots.swap_remove(index);
            self.bytes -= old.heap_len() + SLOT_COST;
        }
    }

    /// Returns the size as HAProxy counts it, if the variable `id` had this value.
    fn counted_with(&self, id: Option<NameId>, value: &Sample) -> usize {
        let size = self.bytes + self.slots.len() * COUNTED - self.slots.len() * SLOT_COST;
        let Some(id) = id else { return size };
        let old = self.get(id).map_or(0, |old| old.heap_len() + COUNTED);
        size - old + value.heap_len() + COUNTED
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.bytes = 0;
    }

    /// Returns whether no variable is set.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// A session's variables, which its streams share.
#[derive(Clone, Debug, Default)]
pub struct SessionVariables(Rc<RefCell<VarMap>>);

/// The variables of one stream, with access to those of its session.
#[derive(Debug, Default)]
pub struct Variables {
    session: SessionVariables,
    transaction: VarMap,
    request: VarMap,
    response: VarMap,
    in_response: bool,
    beyond: Beyond,
}

/// Variables that few have besides those of a stream.
#[derive(Debug, Default)]
enum Beyond {
    #[default]
    Nothing,
    /// Those of a health check.
    Check(VarMap),
    /// The parent stream's, for messages to an agent. They are copies, which nothing sets.
    Parent(Box<Variables>),
}

impl Variables {
    /// Initializes the variables for a stream of this session, which has no variables of its own yet.
    pub fn begin(&mut self, session: &SessionVariables) {
        self.session.clone_from(session);
        self.transaction.clear();
        self.request.clear();
        self.response.clear();
        self.in_response = false;
    }

    /// Returns the variables of a stream within this one, which sees this stream's as its parent's.
    pub(crate) fn of_child(&self) -> Variables {
        let parent = Variables {
            session: self.session.clone(),
            transaction: self.transaction.clone(),
            request: self.request.clone(),
            response: self.response.clone(),
            ..Variables::default()
        };
        Variables { beyond: Beyond::Parent(Box::new(parent)), ..Variables::default() }
    }

    /// Returns the parent stream, if there is one, and a variable as its own.
    fn of_parent(&self, scope: ParentScope, id: NameId) -> Option<(&Variables, VarRef)> {
        let variable = match scope {
            ParentScope::Sess => VarRef::Session(id),
            ParentScope::Txn => VarRef::Transaction(id),
            ParentScope::Req => VarRef::Request(id),
            ParentScope::Res => VarRef::Response(id),
        };
        match &self.beyond {
            Beyond::Parent(parent) => Some((parent, variable)),
            Beyond::Nothing | Beyond::Check(_) => None,
        }
    }

    /// Returns the variables of a health check, which has neither a request nor a session.
    pub(crate) fn of_check(own: VarMap) -> Variables {
        Variables { beyond: Beyond::Check(own), ..Variables::default() }
    }

    /// Returns the variables of a health check, which stores them between two of its steps.
    pub(crate) fn into_check(self) -> VarMap {
        match self.beyond {
            Beyond::Check(own) => own,
            Beyond::Nothing | Beyond::Parent(_) => VarMap::default(),
        }
    }

    /// Returns the variables of the health check, if this is one.
    fn check(&self) -> Option<&VarMap> {
        match &self.beyond {
            Beyond::Check(own) => Some(own),
            Beyond::Nothing | Beyond::Parent(_) => None,
        }
    }

    fn check_mut(&mut self) -> Option<&mut VarMap> {
        match &mut self.beyond {
            Beyond::Check(own) => Some(own),
            Beyond::Nothing | Beyond::Parent(_) => None,
        }
    }

    /// Called when the processing of the response begins: drops the `req.` variables.
    pub fn enter_response(&mut self) {
        self.request.clear();
        self.in_response = true;
    }

    /// Returns the value of a variable that belongs to the stream itself, borrowed; returns `None` for variables that
    /// are shared with others.
    #[inline]
    fn own(&self, variable: &VarRef) -> Option<&Sample> {
        match variable {
            VarRef::Process(_) | VarRef::Session(_) | VarRef::Parent(ParentScope::Sess, _) => None,
            VarRef::Transaction(id) => self.transaction.get(*id),
            VarRef::Request(id) => self.request.get(*id),
            VarRef::Response(id) => self.response.get(*id),
            VarRef::Check(id) => self.check()?.get(*id),
            VarRef::Parent(scope, id) => {
                let (parent, variable) = self.of_parent(*scope, *id)?;
                parent.own(&variable)
            }
        }
    }

    /// Returns a variable's value. It is borrowed unless others can change it meanwhile: variables of the process and
    /// of the session are copied.
    #[inline]
    pub fn value(&self, variable: &VarRef) -> Option<Value<'_>> {
        match variable {
            VarRef::Process(_) | VarRef::Session(_) | VarRef::Parent(ParentScope::Sess, _) => {
                self.get(variable).map(Value::from_sample)
            }
            own => self.own(own).map(Sample::as_value),
        }
    }

    /// Runs `f` on a variable's value, if it has one.
    pub fn with_value<R>(&self, variable: &VarRef, f: impl FnOnce(&Value<'_>) -> R) -> Option<R> {
        match variable {
            VarRef::Process(variable) => variable.get().map(|sample| f(&sample.as_value())),
            VarRef::Session(id) => self.session.0.borrow().get(*id).map(|sample| f(&sample.as_value())),
            VarRef::Parent(scope, id) => {
                let (parent, variable) = self.of_parent(*scope, *id)?;
                parent.with_value(&variable, f)
            }
            own => self.own(own).map(|sample| f(&sample.as_value())),
        }
    }

    /// Returns a copy of any variable's value.
    pub fn get(&self, variable: &VarRef) -> Option<Sample> {
        match variable {
            VarRef::Process(variable) => variable.get(),
            VarRef::Session(id) => self.session.0.borrow().get(*id).cloned(),
            VarRef::Parent(scope, id) => {
                let (parent, variable) = self.of_parent(*scope, *id)?;
                parent.get(&variable)
            }
            own => self.own(own).cloned(),
        }
    }

    /// Sets a variable. Returns `false`, and keeps the old value, if [`STREAM_LIMIT`] would be exceeded. Also returns
    /// `false` for a variable of the message that is not being processed; as in HAProxy, it cannot be stored.
    /// Bytes beyond a limit of `tune.vars.*` leave the boolean `false`, as in HAProxy.
    pub fn set(&mut self, variable: &VarRef, value: Sample) -> bool {
        if !self.is_allowed(variable, &value) {
            if value.heap_len() > 0 {
                self.set(variable, Sample::Bool(false));
            }
            return false;
        }
        if let VarRef::Process(process) = variable {
            if value.heap_len() > STREAM_LIMIT {
                return false;
            }
            process.set(Some(value));
            return true;
        }
        match variable {
            VarRef::Request(_) if self.in_response => return false,
            VarRef::Response(_) if !self.in_response => return false,
            VarRef::Check(_) if self.check().is_none() => return false,
            VarRef::Parent(..) => return false,
            _ => {}
        }
        if self.bytes() + value.heap_len() + SLOT_COST > STREAM_LIMIT {
            return false;
        }
        match variable {
            VarRef::Process(_) | VarRef::Parent(..) => {}
            VarRef::Session(id) => self.session.0.borrow_mut().set(*id, value),
            VarRef::Transaction(id) => self.transaction.set(*id, value),
            VarRef::Request(id) => self.request.set(*id, value),
            VarRef::Response(id) => self.response.set(*id, value),
            VarRef::Check(id) => {
                if let Some(own) = self.check_mut() {
                    own.set(*id, value);
                }
            }
        }
        true
    }

    /// Unsets a variable.
    pub fn unset(&mut self, variable: &VarRef) {
        match variable {
            VarRef::Process(process) => process.set(None),
            VarRef::Session(id) => self.session.0.borrow_mut().unset(*id),
            VarRef::Transaction(id) => self.transaction.unset(*id),
            VarRef::Request(id) => self.request.unset(*id),
            VarRef::Response(id) => self.response.unset(*id),
            VarRef::Check(id) => {
                if let Some(own) = self.check_mut() {
                    own.unset(*id);
                }
            }
            VarRef::Parent(..) => {}
        }
    }

    /// Returns whether a variable may have this value under the limits of `tune.vars.*`.
    fn is_allowed(&self, variable: &VarRef, value: &Sample) -> bool {
        if !IS_LIMITED.load(Ordering::Relaxed) {
            return true;
        }
        let [global, process, session, transaction, message, check] =
            LIMITS.each_ref().map(|limit| match limit.load(Ordering::Relaxed) {
                0 => usize::MAX,
                limit => limit,
            });
        let of = |map: &VarMap, id: Option<NameId>| map.counted_with(id, value);
        let (in_session, in_transaction, in_request, in_response, in_check) = match *variable {
            VarRef::Process(_) | VarRef::Parent(..) => (None, None, None, None, None),
            VarRef::Session(id) => (Some(id), None, None, None, None),
            VarRef::Transaction(id) => (None, Some(id), None, None, None),
            VarRef::Request(id) => (None, None, Some(id), None, None),
            VarRef::Response(id) => (None, None, None, Some(id), None),
            VarRef::Check(id) => (None, None, None, None, Some(id)),
        };
        let messages = of(&self.request, in_request) + of(&self.response, in_response);
        let transactions = messages + of(&self.transaction, in_transaction);
        let checks = self.check().map_or(0, |map| of(map, in_check));
        let sessions = transactions + checks + of(&self.session.0.borrow(), in_session);
        let own = match variable {
            VarRef::Process(variable) => counted(Some(value)).saturating_sub(counted(variable.get().as_ref())),
            _ => sessions,
        };
        let all = PROCESS_SIZE.load(Ordering::Relaxed).saturating_add(own);
        // A scope is limited for what is set in it, or within it.
        let bounded = match variable {
            VarRef::Request(_) | VarRef::Response(_) => {
                messages <= message && transactions <= transaction && sessions <= session
            }
            VarRef::Transaction(_) => transactions <= transaction && sessions <= session,
            VarRef::Check(_) => checks <= check && sessions <= session,
            VarRef::Session(_) => sessions <= session,
            VarRef::Process(_) | VarRef::Parent(..) => true,
        };
        bounded && all <= process && all <= global
    }

    fn bytes(&self) -> usize {
        self.session.0.borrow().bytes
            + self.transaction.bytes
            + self.request.bytes
            + self.response.bytes
            + self.check().map_or(0, |check| check.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(scope: VarScope, name: &str) -> VarRef {
        VarRef::intern(&VarName { scope, name: Arc::from(name) }).expect("room for a name")
    }

    #[test]
    fn scopes_are_apart_and_end_at_their_time() {
        let mut variables = Variables::default();
        let all = [VarScope::Sess, VarScope::Txn, VarScope::Req, VarScope::Res].map(|scope| name(scope, "scopes.v"));
        let set = |variables: &mut Variables| {
            let numbers = all.iter().zip(0..);
            numbers.map(|(variable, number)| variables.set(variable, Sample::Int(number))).collect::<Vec<_>>()
        };
        let values = |variables: &Variables| all.each_ref().map(|variable| variables.get(variable));
        let int = |number| Some(Sample::Int(number));
        assert_eq!(set(&mut variables), [true, true, true, false], "there is no response yet");
        assert_eq!(values(&variables), [int(0), int(1), int(2), None]);
        variables.enter_response();
        assert_eq!(values(&variables), [int(0), int(1), None, None]);
        assert_eq!(set(&mut variables), [true, true, false, true], "the request is over");
        assert_eq!(values(&variables), [int(0), int(1), None, int(3)]);
        let session = variables.session.clone();
        let mut other = Variables::default();
        other.begin(&session);
        assert_eq!(values(&other), [int(0), None, None, None], "a session's streams share its variables");
        assert_eq!(set(&mut other), [true, true, true, false]);
        other.unset(&all[0]);
        assert_eq!(values(&variables), [None, int(1), None, int(3)], "whichever of them changes one");
        variables.begin(&session);
        assert_eq!(values(&variables), [None, None, None, None]);
    }

    #[test]
    fn process_variables_are_shared_by_name() {
        let first = name(VarScope::Proc, "shared.v");
        let (mut one, other) = (Variables::default(), Variables::default());
        assert!(one.set(&first, Sample::Str(b"x".to_vec())));
        let again = VarRef::parse("proc.shared.v").expect("known");
        assert_eq!(other.get(&again), Some(Sample::Str(b"x".to_vec())));
        one.unset(&again);
        assert_eq!(other.get(&first), None);
    }

    #[test]
    fn a_stream_keeps_at_most_its_limit() {
        let mut variables = Variables::default();
        let big = name(VarScope::Txn, "limit.big");
        let small = name(VarScope::Sess, "limit.small");
        assert!(variables.set(&big, Sample::Str(vec![b'x'; STREAM_LIMIT - 2 * SLOT_COST])));
        assert!(!variables.set(&small, Sample::Str(vec![b'x'; STREAM_LIMIT])));
        assert!(variables.set(&small, Sample::Int(1)), "what fits is set");
        variables.unset(&big);
        assert!(variables.set(&small, Sample::Str(vec![b'y'; 1000])), "what is unset no longer counts");
    }

    #[test]
    fn names_are_parsed_as_in_the_manual() {
        assert_eq!(split("txn.a.b_1"), Some((VarScope::Txn, "a.b_1")));
        for wrong in ["txn", "txn.", "other.a", "txn.a-b", "a"] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }
}
