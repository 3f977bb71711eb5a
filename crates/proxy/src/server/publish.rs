//! Events of servers, told to the scripts that have subscribed to them.

use super::event::{AdminFlags, Cause, Condition, Detail, ServerEvent, Stage, Subject};
use super::run::ServerRun;
use crate::running::Running;
use crate::site::Site;

impl Running {
    /// Tells the subscribers of an event of a server.
    pub(crate) fn tell_event(&self, site: &Site, server: &ServerRun, detail: Detail) {
        let Some(lua) = self.lua.as_ref().filter(|lua| lua.has_subscribers()) else { return };
        let subject = Subject {
            proxy: site.id.0 as usize,
            life: server.shared.life,
            name: server.name().clone(),
            puid: server.config.sid,
            rid: server.shared.revision,
            proxy_name: site.config.name.clone(),
            proxy_uuid: site.config.uid,
        };
        lua.event(&ServerEvent { subject, detail });
    }

    /// Tells of an operational change.
    pub(super) fn tell_operation(
        &self,
        site: &Site,
        server: &ServerRun,
        before: Condition,
        cause: Cause,
        requeued: u32,
    ) {
        let new = server.condition().effective();
        self.tell_stage(site, server, (before.effective(), new), false, cause, requeued);
    }

    fn tell_stage(
        &self,
        site: &Site,
        server: &ServerRun,
        (old, new): (Stage, Stage),
        admin: bool,
        cause: Cause,
        requeued: u32,
    ) {
        if old == new {
            return;
        }
        match (old, new) {
            (Stage::Stopped, _) => self.tell_event(site, server, Detail::Up),
            (_, Stage::Stopped) => self.tell_event(site, server, Detail::Down),
            _ => {}
        }
        self.tell_event(site, server, Detail::State { admin, cause, old, new, requeued });
    }

    /// Tells of an administrative change, as HAProxy does: flags are set first, then others are cleared.
    pub(super) fn tell_admin(&self, site: &Site, server: &ServerRun, before: Condition, cause: &str, requeued: u32) {
        let after = server.condition();
        let between = before.admin.or(after.admin);
        for (old, new) in [(before.admin, between), (between, after.admin)] {
            if old == new {
                continue;
            }
            self.tell_event(site, server, Detail::Admin { cause: cause.to_owned(), old, new, requeued });
            let stage = |admin: AdminFlags| match (admin.maintenance(), before.admin.maintenance()) {
                (true, _) => Stage::Stopped,
                (false, true) => after.stage,
                (false, false) => before.stage,
            };
            self.tell_stage(site, server, (stage(old), stage(new)), true, Cause::Text(cause.to_owned()), requeued);
        }
    }
}
