//! Sections as running objects.

use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use sluicegate_config::Config;
use sluicegate_config::model::{self, SocketSizes, StickTable};
use sluicegate_tls::resumption::Resumption;

use super::{Section, SharedTable, State};
use crate::directory::{Directory, Sides};
use crate::engines::Engines;
use crate::errors::CompileError;
use crate::sample::FetchScope;
use crate::server::{Common, Headers, ServerNames, connectors, set_sockets};
use crate::site::Site;
use crate::stick::Sharing;
use crate::tls::{self, BindsTls};

/// What outlives snapshots of each section that exchanges tables, by its name.
pub(crate) struct States(HashMap<Arc<str>, Arc<State>>);

impl States {
    /// Returns those of a configuration; sections of `before` keep theirs.
    pub(crate) fn new(config: &Config, before: &[Arc<Section>]) -> States {
        let active = config.peers.iter().filter(|peers| peers.is_active());
        let state = |peers: &model::Peers| {
            let name = peers.name();
            let known = before.iter().find(|section| section.config.name() == name);
            let state = known.map_or_else(|| Arc::new(State::new(name.clone())), |section| section.state.clone());
            (name.clone(), state)
        };
        States(active.map(state).collect())
    }

    /// Returns how a table of the configuration is shared, if it is.
    pub(crate) fn sharing(&self, config: &Config, table: &StickTable) -> Option<Sharing> {
        let section = table.peers.as_ref()?;
        let state = self.0.get(section)?;
        let peers = config.peers.iter().find(|peers| peers.name() == section)?;
        let others = peers.proxy.servers.iter().enumerate().filter(|(index, _)| Some(*index) != peers.local);
        let nodes =
            if table.aggregate { others.map(|(_, server)| server.name.clone()).collect() } else { Arc::default() };
        let local = peers.local_peer().map_or("", |server| &server.name);
        let before = peers.proxy.servers.iter().filter(|server| *server.name < *local).count();
        let rank = before.min(usize::from(u8::MAX)) as u8;
        Some(Sharing { wake: state.wake.clone(), aggregate: table.aggregate, nodes, rank, shards: peers.shards })
    }
}

/// Builds the sections of a configuration that exchange tables.
pub(crate) fn sections(
    config: &Config,
    states: &States,
    directory: &Arc<Directory>,
    engines: &Engines,
    before: &[Arc<Section>],
) -> Result<Vec<Arc<Section>>, Vec<CompileError>> {
    let mut errors = Vec::new();
    let process = &directory.process;
    let find = |name: &str| directory.table(name).cloned();
    let scope = FetchScope { directory: Some(directory), own: None };
    let mut sections = Vec::new();
    for peers in config.peers.iter().filter(|peers| peers.is_active()) {
        let Some(state) = states.0.get(peers.name()) else { continue };
        let known = before.iter().find(|section| section.config.name() == peers.name());
        let own = config.all_tables().filter(|table| table.peers.as_ref() == Some(peers.name()));
        let own = own.filter_map(|table| {
            let target = table.write_to.as_deref().and_then(find);
            Some(SharedTable { table: find(&table.name)?, config: table.clone(), target })
        });
        let sides = Sides::new(
            &peers.proxy,
            Common { workers: process.workers.len(), revision: 0, busy: &Arc::default() },
            1,
            None,
        );
        let servers = sides.servers.clone();
        if let Err(found) = connectors(&servers, known.map_or(&[], |section| &section.servers)) {
            errors.extend(found);
        }
        errors.extend(
            set_sockets(servers.iter(), &SocketSizes::default(), &process.namespaces).err().into_iter().flatten(),
        );
        let names = ServerNames::compile(&peers.proxy, engines, scope);
        let headers = Headers::compile(&peers.proxy, engines, scope);
        // In what is sent to peers, HAProxy's name of the section is that of the local one.
        let name = peers.local_peer().map_or_else(Arc::default, |server| server.name.clone());
        let site = Site::of_servers(model::Proxy { name, ..peers.proxy.clone() }, &sides, directory);
        match (listener_of(peers, &process.resumption, known), names, headers) {
            (Ok(tls), Ok(names), Ok(headers)) => sections.push(Arc::new(Section {
                config: peers.clone(),
                servers,
                tls,
                tables: own.collect(),
                state: state.clone(),
                site: Arc::new(site),
                names,
                headers,
                door: OnceLock::new(),
            })),
            (tls, names, headers) => {
                errors.extend(tls.err().into_iter().chain(names.err()).chain(headers.err()).flatten());
            }
        }
    }
    if errors.is_empty() { Ok(sections) } else { Err(errors) }
}

fn listener_of(
    peers: &model::Peers,
    resumption: &Arc<Resumption>,
    known: Option<&Arc<Section>>,
) -> Result<Option<Arc<sluicegate_tls::listener::Listener>>, Vec<CompileError>> {
    let before: Option<(&model::Proxy, BindsTls)> =
        known.map(|section| (&section.config.proxy, vec![section.tls.clone()].into()));
    let before = before.as_ref().map(|(proxy, listeners)| (*proxy, listeners));
    let listeners = tls::listeners(&peers.proxy, resumption, before)?;
    Ok(listeners.into_iter().next().flatten())
}
