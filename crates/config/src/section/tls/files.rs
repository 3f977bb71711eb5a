//! Certificates and other files of TLS: the lookup of the files that a path names; each is read and parsed once.
//!
//! Files are read one after another, through [`Files`]; certificates are then parsed by all cores, since parsing a key
//! and comparing it with its certificate takes longer than anything else in a large configuration. A certificate whose
//! files did not change since the configuration that this one replaces is taken from there.
//!
//! The rules are HAProxy's (configuration manual, `crt` and `ssl-load-extra-files`), and so are the messages.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use sluicegate_tls::pair::{Issuers, Pair};
use sluicegate_tls::policy::{TicketKeyFile, Verify};
use sluicegate_tls::x509::Bundle;

use super::crt_list::Loaded;
use super::library::{Authorities, Common, File, PairFiles};
use super::named::{NamedFiles, Origin};
use super::ticket_keys;
use crate::Files;
use crate::diagnostic::Diagnostics;
use crate::model::{self, Config, CrtList, CrtListLine, GlobalTls, Position, TlsFiles};

/// Key types of a bundle, in the order in which they are looked for.
const BUNDLE: [&str; 3] = ["dsa", "ecdsa", "rsa"];
/// The suffixes of files in a directory that are not certificates.
const BESIDE: [&str; 4] = [".issuer", ".ocsp", ".sctl", ".key"];
/// The suffixes of files in a directory of CA certificates.
const AUTHORITIES: [&str; 4] = [".pem", ".crt", ".cer", ".crl"];
/// The directory of the system's CA certificates, which is what HAProxy reads, and the files of all of them, by
/// distribution: not every distribution has each certificate in a file of its own.
const SYSTEM_CA: &str = "/etc/ssl/certs";
const SYSTEM_CA_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The number of certificates below which one thread parses all.
const FEW: usize = 16;

/// A loader of files, with everything that was read in one load of a configuration.
pub(crate) struct Loader<'a> {
    files: &'a dyn Files,
    pub(crate) global: &'a GlobalTls,
    previous: Option<Arc<TlsFiles>>,
    /// Digests of certificates' files that another process has parsed without an error.
    checked: Arc<HashSet<[u8; 32]>>,
    /// The data on which all certificates depend.
    common: Common,
    loaded: RefCell<TlsFiles>,
    /// Authorities that could not be loaded, so that a second line of the same path reads nothing.
    failed: RefCell<HashMap<Arc<str>, String>>,
    warnings: RefCell<Vec<String>>,
    /// Where `acme` sections are named first.
    acme_places: RefCell<HashMap<String, Position>>,
    /// The files that were named for a certificate, by the certificate's name.
    named: RefCell<HashMap<Arc<str>, NamedFiles>>,
    /// Lists by name.
    lists: RefCell<HashMap<String, Result<Loaded, String>>>,
}

/// TLS files that are already parsed, here or by another process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The TLS files of the configuration that this one replaces.
    pub(crate) previous: Option<Arc<TlsFiles>>,
    /// Digests of certificates' files that another process has parsed without an error.
    pub(crate) checked: Arc<HashSet<[u8; 32]>>,
}

/// A path of `crt`.
enum Kind {
    File(Vec<u8>),
    Directory(Vec<String>),
}

impl<'a> Loader<'a> {
    pub(crate) fn new(files: &'a dyn Files, global: &'a GlobalTls, known: Known) -> Loader<'a> {
        let (loaded, failed, warnings, named, lists) = Default::default();
        let acme_places = RefCell::default();
        let common = Common::default();
        let Known { previous, checked } = known;
        let mut loader =
            Loader { files, global, previous, checked, common, loaded, failed, warnings, acme_places, named, lists };
        loader.common.skip_self_issued = global.skip_self_issued_ca;
        loader
    }

    /// Returns a loader with only the files that a configuration has loaded.
    pub(crate) fn of(files: &'a dyn Files, config: &'a Config) -> Loader<'a> {
        Loader::with(files, &config.global.tls, TlsFiles::clone(&config.tls_files))
    }

    /// Returns a loader with the files that the process has loaded, and changed since.
    pub(crate) fn with(files: &'a dyn Files, global: &'a GlobalTls, loaded: TlsFiles) -> Loader<'a> {
        let loader = Loader::new(files, global, Known::default());
        loader.loaded.replace(loaded);
        loader
    }

    /// Reads the chains of `issuers-chain-path`, before any certificate.
    pub(crate) fn read_issuers(&mut self, diagnostics: &mut Diagnostics) {
        let Some((path, at)) = &self.global.issuers_chain_path else { return };
        self.files.stand_at(at);
        let names = match self.files.names(Path::new(&**path)) {
            Ok(names) => names,
            Err(_) => {
                let message = format!("global statement 'issuers-chain-path': {path} is not a directory");
                diagnostics.error(at.clone(), message);
                return;
            }
        };
        let mut issuers = Issuers::default();
        for name in names {
            let file = format!("{path}/{name}");
            let added = match self.read(&file) {
                Ok(pem) => issuers.add(&file, &pem),
                Err(error) => Err(format!("unable to stat certificate from file '{file}' : {}", reason(&error))),
            };
            if let Err(message) = added {
                diagnostics.warning(at.clone(), message.trim_end_matches('.'));
            }
        }
        let issuers = Arc::new(issuers);
        self.loaded.borrow_mut().issuers = issuers.clone();
        self.common.issuers = Some(issuers);
    }

    /// Returns the authorities of `httpclient.ssl.ca-file`. Those of the system, if no file is named, are read if there is
    /// a user of the client, and may be absent.
    pub(crate) fn client_authorities(&self, has_users: bool, diagnostics: &mut Diagnostics) -> Option<Arc<Bundle>> {
        if self.global.client_verify == Verify::None {
            return None;
        }
        let Some((path, at)) = &self.global.client_ca else {
            let loaded = has_users.then(|| self.authorities("@system-ca", false).ok()).flatten();
            self.take_warnings();
            return loaded;
        };
        self.files.stand_at(at);
        let loaded = self.authorities(path, false);
        for message in self.take_warnings() {
            diagnostics.warning(at.clone(), message);
        }
        loaded.map_err(|message| diagnostics.error(at.clone(), format!("'httpclient.ssl.ca-file': {message}"))).ok()
    }

    /// Returns the file system through which files are read.
    pub(crate) fn files(&self) -> &dyn Files {
        self.files
    }

    /// Returns everything that was loaded.
    pub(crate) fn finish(self) -> TlsFiles {
        self.loaded.into_inner()
    }

    /// Returns the certificates that are renewed by ACME.
    pub(crate) fn acme(&self) -> Vec<(Arc<str>, model::AcmeUse)> {
        self.loaded.borrow().acme.iter().map(|(name, used)| (name.clone(), used.clone())).collect()
    }

    /// Keeps the place of a word `acme`.
    pub(super) fn names_acme(&self, name: &str, section: &str, at: &Position) {
        if name == "acme" {
            self.acme_places.borrow_mut().entry(section.to_owned()).or_insert_with(|| at.clone());
        }
    }

    /// Returns where a section is named first.
    pub(crate) fn acme_place(&self, section: &str) -> Option<Position> {
        self.acme_places.borrow().get(section).cloned()
    }

    /// Sets the position of the line that names the following relative paths.
    pub(crate) fn stand_at(&self, at: &Position) {
        self.files.stand_at(at);
    }

    /// Returns the warnings since the last call.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    pub(super) fn warn(&self, message: String) {
        self.warnings.borrow_mut().push(message);
    }

    /// Returns a path below `crt-base`, unless it is absolute or a name of a `crt-store`.
    pub(crate) fn crt_path(&self, path: &str) -> String {
        below(self.global.crt_base.as_deref(), path)
    }

    /// Returns a path below `ca-base`, unless it is absolute or a special name.
    pub(super) fn ca_path(&self, path: &str) -> String {
        below(self.global.ca_base.as_deref(), path)
    }

    /// Returns the content of a file.
    pub(crate) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.files.read(Path::new(path))
    }

    /// Returns the certificates of `crt PATH`: one, those of a directory in alphabetical order, or those of a bundle.
    /// The path has its base already.
    pub(super) fn crt(&self, path: &str) -> Result<Crt, String> {
        if let Some(pair) = self.known(path) {
            if let Some(conflict) = self.conflict(path, &NamedFiles::default()) {
                return Err(format!(
                    "Can't load '{path}', is already defined with incompatible parameters: {conflict}"
                ));
            }
            return Ok(Crt { pairs: vec![pair], is_bundle: false, list: None });
        }
        if path.starts_with('@') {
            return Err(format!("unable to stat SSL certificate from file '{path}' : No such file or directory"));
        }
        match self.kind(path) {
            Ok(Kind::File(pem)) => Ok(Crt { pairs: vec![self.pair(path, Some(pem))?], is_bundle: false, list: None }),
            Ok(Kind::Directory(names)) => {
                let list = Some(path.trim_end_matches('/').into());
                Ok(Crt { pairs: self.directory(path, &names)?, is_bundle: false, list })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.bundle_files(path)? {
                Some(pairs) => Ok(Crt { pairs, is_bundle: true, list: None }),
                None => Err(format!("unable to stat SSL certificate from file '{path}' : {}", reason(&error))),
            },
            Err(_) => Err(format!("cannot open the file '{path}'")),
        }
    }

    /// Returns the certificates of a directory, which is also known as a list.
    fn directory(&self, path: &str, names: &[String]) -> Result<Vec<Arc<Pair>>, String> {
        let path = path.trim_end_matches('/');
        let names: Vec<&str> = names.iter().map(String::as_str).filter(|name| is_certificate(name)).collect();
        let file_digest = digest(&names);
        let mut batch = self.batch();
        let edited = self.edited(path, file_digest);
        let mut numbers = vec![0; names.len()];
        match &edited {
            Some(edited) => {
                numbers = edited.lines.iter().map(|line| line.number).collect();
                for line in &edited.lines {
                    batch.push_again(&line.pair)?;
                }
            }
            None => {
                for name in names {
                    batch.push(&format!("{path}/{name}"), &NamedFiles::default(), None)?;
                }
            }
        }
        let pairs = batch.finish().map_err(|(_, message)| message)?;
        let line = |(pair, number): (&Arc<Pair>, u32)| CrtListLine {
            number,
            pair: pair.clone(),
            options: String::new(),
            filters: Vec::new(),
        };
        let list = CrtList {
            name: path.into(),
            lines: pairs.iter().zip(numbers).map(line).collect::<Vec<_>>().into(),
            last_number: edited.as_ref().map_or(0, |edited| edited.last_number),
            is_directory: true,
            file_digest,
            is_edited: edited.is_some(),
        };
        self.loaded.borrow_mut().crt_lists.insert(path.into(), Arc::new(list));
        Ok(pairs)
    }

    /// Returns a list that was changed at run time, if its file is as it was then.
    pub(super) fn edited(&self, name: &str, file_digest: [u8; 32]) -> Option<Arc<CrtList>> {
        let list = self.previous.as_ref()?.crt_lists.get(name)?;
        (list.is_edited && list.file_digest == file_digest).then(|| list.clone())
    }

    /// Returns the certificate of `crt PATH` of a server: one file. The path has its base already.
    pub(super) fn client_crt(&self, path: &str) -> Result<Arc<Pair>, String> {
        self.known(path).map_or_else(|| self.pair(path, None), Ok)
    }

    /// Returns the certificates of a bundle; `None` if there is none of this name.
    fn bundle_files(&self, path: &str) -> Result<Option<Vec<Arc<Pair>>>, String> {
        let mut batch = self.batch();
        batch.push_bundle(path)?;
        let pairs = batch.finish().map_err(|(_, message)| message)?;
        Ok((!pairs.is_empty()).then_some(pairs))
    }

    fn kind(&self, path: &str) -> io::Result<Kind> {
        let error = match self.read(path) {
            Ok(bytes) => return Ok(Kind::File(bytes)),
            Err(error) => error,
        };
        match self.files.names(Path::new(path)) {
            Ok(names) => Ok(Kind::Directory(names)),
            Err(_) => Err(error),
        }
    }

    /// Returns a certificate that has been loaded under this name.
    pub(super) fn known(&self, name: &str) -> Option<Arc<Pair>> {
        self.loaded.borrow().pairs.get(name).cloned()
    }

    /// Returns a setting for a known certificate in which a line differs from an earlier line.
    fn conflict(&self, name: &str, new: &NamedFiles) -> Option<String> {
        let (named, loaded) = (self.named.borrow(), self.loaded.borrow());
        let known = loaded.sources.get(name).cloned().unwrap_or_default();
        named.get(name)?.conflict(&known, new, self.global.ocsp_update.by_default)
    }

    /// Loads one certificate.
    fn pair(&self, name: &str, pem: Option<Vec<u8>>) -> Result<Arc<Pair>, String> {
        let mut batch = self.batch();
        batch.push(name, &NamedFiles::default(), pem)?;
        batch.finish().map(|mut pairs| pairs.remove(0)).map_err(|(_, message)| message)
    }

    /// Returns the files that an earlier configuration named for a certificate.
    fn previous_files(&self, name: &str) -> Option<NamedFiles> {
        let previous = self.previous.as_ref()?;
        let no_files = model::NamedFiles::default();
        let shown = match previous.named.get(name) {
            Some(shown) => shown,
            None => previous.acme.contains_key(name).then_some(&no_files)?,
        };
        let mut files = NamedFiles::again(shown, previous.ocsp_updates.contains(name));
        if let Some(used) = previous.acme.get(name) {
            files.acme = Some(used.section.to_string());
            files.domains = Some(used.domains.clone());
        }
        Some(files)
    }

    /// Returns an empty list of certificates to load.
    pub(super) fn batch(&self) -> Batch<'_, 'a> {
        Batch { loader: self, wanted: Vec::new(), slots: HashMap::new() }
    }

    /// Returns a list that has been read.
    pub(super) fn known_list(&self, name: &str) -> Option<Result<Loaded, String>> {
        self.lists.borrow().get(name).cloned()
    }

    /// Keeps a list, or its error.
    pub(super) fn keep_list(&self, name: &str, loaded: Result<Loaded, String>) {
        if let Ok(loaded) = &loaded {
            self.loaded.borrow_mut().crt_lists.insert(name.into(), loaded.list.clone());
        }
        self.lists.borrow_mut().insert(name.into(), loaded);
    }

    /// Reads the files of a certificate.
    fn gather(&self, name: &str, named: &NamedFiles, pem: Option<Vec<u8>>) -> Result<PairFiles, String> {
        let path = named.crt.as_deref().unwrap_or(name);
        let pem = match pem {
            Some(pem) => pem,
            None => self.read(path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("unable to stat SSL certificate from file '{path}' : {}", reason(&error))
                }
                _ => format!("cannot open the file '{path}'"),
            })?,
        };
        let extra = self.global.extra_files;
        let stem = if self.global.extra_del_ext { path.strip_suffix(".crt").unwrap_or(path) } else { path };
        let beside = |wanted: bool, end: &str| -> Option<File> {
            let path = format!("{stem}.{end}");
            (wanted && !named.only()).then(|| self.read(&path).ok().map(|bytes| (path, bytes))).flatten()
        };
        let given = |path: &Option<String>, what: &str| -> Result<Option<File>, String> {
            let Some(path) = path else { return Ok(None) };
            let bytes = self.read(path).map_err(|_| format!("'{path}' {what}"))?;
            Ok(Some((path.clone(), bytes)))
        };
        let unreadable = "is present but cannot be read or parsed";
        let mut files = PairFiles { path: name.to_owned(), pem: pem.into(), ..PairFiles::default() };
        let secret = |(path, bytes): File| (path, bytes.into());
        files.key = given(&named.key, unreadable)?.map(secret);
        files.key_wins = files.key.is_some();
        if files.key.is_none() && !has(&files.pem, b"PRIVATE KEY-----") && !named.only() && extra.key {
            files.key = beside(true, "key").map(secret);
            files.key_sought = Some(format!("{stem}.key"));
        }
        files.ocsp = given(&named.ocsp, unreadable)?.or_else(|| beside(extra.ocsp, "ocsp"));
        files.issuer = given(&named.issuer, unreadable)?;
        if files.issuer.is_none() && files.ocsp.is_some() {
            files.issuer = beside(extra.issuer, "issuer");
        }
        if let Some((path, _)) = given(&named.sctl, unreadable)?.or_else(|| beside(extra.sctl, "sctl")) {
            self.warn(format!("'{path}' is ignored: signed certificate timestamps are not sent"));
        }
        Ok(files)
    }

    /// Returns the files that `show ssl cert` prints: as in HAProxy those that a line of a list or a `crt-store` names,
    /// else also files that were looked for, found or not.
    fn source(&self, named: &NamedFiles, files: &PairFiles) -> model::NamedFiles {
        if named.crt.is_some() || named.origin != Origin::Plain {
            return named.as_written();
        }
        let crt = files.path.clone();
        let stem = if self.global.extra_del_ext { crt.strip_suffix(".crt").unwrap_or(&crt) } else { &crt };
        let beside = |wanted: bool, end: &str| wanted.then(|| format!("{stem}.{end}"));
        let extra = self.global.extra_files;
        model::NamedFiles {
            key: Some(files.key.as_ref().map_or_else(|| crt.clone(), |(path, _)| path.clone())),
            ocsp: beside(extra.ocsp, "ocsp"),
            issuer: beside(extra.issuer && files.ocsp.is_some(), "issuer"),
            sctl: beside(extra.sctl, "sctl"),
            crt: Some(crt),
        }
    }

    fn keep(&self, pair: Arc<Pair>, named: NamedFiles) -> Arc<Pair> {
        let name: Arc<str> = pair.path.as_str().into();
        let update = &self.global.ocsp_update;
        let mut loaded = self.loaded.borrow_mut();
        if named.update.unwrap_or(update.by_default) && !update.disabled {
            loaded.ocsp_updates.insert(name.clone());
        }
        if let Some(section) = &named.acme {
            let domains = named.domains.clone().unwrap_or_default();
            loaded.acme.insert(name.clone(), model::AcmeUse { section: section.as_str().into(), domains });
        }
        if let Some(files) = named.shown() {
            loaded.named.insert(name.clone(), files);
        }
        if named.origin != Origin::Plain {
            let worded = model::Worded { in_store: named.origin == Origin::Store, update: named.update };
            loaded.worded.insert(name.clone(), worded);
        }
        self.named.borrow_mut().insert(name.clone(), named);
        loaded.pairs.insert(name, pair.clone());
        pair
    }

    /// Parses certificates, unless the previous configuration has them.
    fn parse(&self, wanted: Vec<PairFiles>) -> Vec<Result<Arc<Pair>, String>> {
        // The threads cannot share the loader, whose cells belong to this thread.
        let (previous, checked, common) = (self.previous.as_deref(), &self.checked, &self.common);
        let parse = |files: PairFiles| {
            let old = previous.and_then(|previous| previous.pairs.get(files.path.as_str()));
            if let Some(pair) = old.filter(|old| old.file_digest() == Some(files.digest(common))) {
                return Ok(pair.clone());
            }
            // The issuer of an OCSP response is checked here, so its certificate is parsed in any case.
            if !checked.is_empty() && files.ocsp.is_none() && checked.contains(&files.digest(common)) {
                return Ok(Arc::new(files.checked(common)));
            }
            files.parse(common).map(Arc::new)
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        if wanted.len() < FEW || threads == 1 {
            return wanted.into_iter().map(parse).collect();
        }
        let share = wanted.len().div_ceil(threads);
        let mut rest = wanted.into_iter();
        let shares: Vec<Vec<_>> = (0..threads).map(|_| rest.by_ref().take(share).collect()).collect();
        let parse = &parse;
        std::thread::scope(|scope| {
            let start = |share: Vec<_>| scope.spawn(move || share.into_iter().map(parse).collect::<Vec<_>>());
            let running: Vec<_> = shares.into_iter().map(start).collect();
            running.into_iter().flat_map(|thread| thread.join().expect("a parser does not panic")).collect()
        })
    }

    /// Returns the authorities, or the revocation lists, of a path: a file, a directory or `@system-ca`. The path has its
    /// base already.
    pub(super) fn authorities(&self, path: &str, is_crl: bool) -> Result<Arc<Bundle>, String> {
        if let Some(bundle) = self.loaded.borrow().bundles.get(path) {
            return Ok(bundle.clone());
        }
        if let Some(message) = self.failed.borrow().get(path) {
            return Err(message.clone());
        }
        let loaded = self.authority_files(path).and_then(|files| {
            let old = self.previous.as_ref().and_then(|previous| previous.bundles.get(path));
            if let Some(bundle) = old.filter(|old| old.file_digest == Some(files.digest())) {
                return Ok(bundle.clone());
            }
            let (bundle, warnings) = files.parse(path)?;
            self.warnings.borrow_mut().extend(warnings);
            Ok(Arc::new(bundle))
        });
        match loaded {
            Ok(bundle) => {
                let mut loaded = self.loaded.borrow_mut();
                loaded.bundles.insert(path.into(), bundle.clone());
                if is_crl {
                    loaded.crl_files.insert(path.into());
                }
                Ok(bundle)
            }
            Err(reason) => {
                let previous = self.previous.as_ref().and_then(|previous| previous.bundles.get(path));
                if let Some(bundle) = previous.filter(|bundle| bundle.file_digest.is_none()) {
                    self.loaded.borrow_mut().bundles.insert(path.into(), bundle.clone());
                    return Ok(bundle.clone());
                }
                let message = format!("unable to load {path} ({reason})");
                self.failed.borrow_mut().insert(path.into(), message.clone());
                Err(message)
            }
        }
    }

    fn authority_files(&self, path: &str) -> Result<Authorities, String> {
        let directory =
            |place: &str, names: &[String]| Some((place.to_owned(), self.authority_directory(place, names)));
        if path == "@system-ca" {
            let whole = SYSTEM_CA_FILES.iter().find_map(|place| self.read(place).ok());
            let names = self.files.names(Path::new(SYSTEM_CA)).ok();
            let found = Authorities { whole, directory: names.and_then(|names| directory(SYSTEM_CA, &names)) };
            let is_empty = found.whole.is_none() && found.directory.is_none();
            return if is_empty { Err("the system has no certificates of authorities".to_owned()) } else { Ok(found) };
        }
        match self.kind(path) {
            Ok(Kind::File(bytes)) => Ok(Authorities { whole: Some(bytes), directory: None }),
            Ok(Kind::Directory(names)) => Ok(Authorities { whole: None, directory: directory(path, &names) }),
            Err(error) => Err(reason(&error)),
        }
    }

    fn authority_directory(&self, path: &str, names: &[String]) -> Vec<File> {
        let wanted = |name: &&String| !name.starts_with('.') && AUTHORITIES.iter().any(|end| name.ends_with(end));
        let directory = path.trim_end_matches('/');
        let mut files = Vec::new();
        for name in names.iter().filter(wanted) {
            match self.read(&format!("{directory}/{name}")) {
                Ok(bytes) => files.push((name.clone(), bytes)),
                Err(error) => {
                    self.warn(format!("ca-file: '{path}' couldn't load '{directory}/{name}' ({})", reason(&error)));
                }
            }
        }
        files
    }

    /// Returns an authority with its key, which may be encrypted.
    pub(super) fn authority(&self, path: &str, pass_phrase: Option<&str>) -> Result<Arc<Pair>, String> {
        let failed = |why: String| format!("Chain loading failed: {why}");
        let pem =
            self.read(path).map_err(|error| failed(format!("cannot open the file '{path}' ({})", reason(&error))))?;
        let mut files = PairFiles { path: path.to_owned(), pem: pem.into(), ..PairFiles::default() };
        files.pass_phrase = pass_phrase.map(str::to_owned);
        files.parse(&self.common).map(Arc::new).map_err(failed)
    }

    /// Returns the keys of a file of `tls-ticket-keys`.
    pub(super) fn ticket_keys(&self, path: &str) -> Result<Arc<TicketKeyFile>, String> {
        if let Some(known) = self.loaded.borrow().ticket_keys.get(path) {
            return Ok(known.clone());
        }
        let bytes = self.read(path).map_err(|_| format!("'{path}' : unable to load ssl tickets keys file"))?;
        let keys = ticket_keys::parse(&bytes).map_err(|message| format!("'{path}' : {message}"))?;
        let file = Arc::new(TicketKeyFile { path: path.into(), keys });
        self.loaded.borrow_mut().ticket_keys.insert(path.into(), file.clone());
        Ok(file)
    }
}

/// Certificates that are read one by one and parsed together.
pub(crate) struct Batch<'a, 'f> {
    loader: &'a Loader<'f>,
    wanted: Vec<(Wanted, NamedFiles)>,
    /// Indices into `wanted` by name.
    slots: HashMap<String, usize>,
}

/// A certificate of a batch.
enum Wanted {
    Known(Arc<Pair>),
    Read(Box<PairFiles>),
}

/// A certificate's place in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(pub(super) usize);

impl Batch<'_, '_> {
    /// Adds the certificate of a line of a list, or those of a bundle.
    pub(super) fn add(&mut self, path: &str, files: &NamedFiles, list: &str, number: u32) -> Result<Vec<Slot>, String> {
        let old = self.slots.get(path).map(|slot| &self.wanted[*slot].1);
        let default = self.loader.global.ocsp_update.by_default;
        let conflict = match old {
            Some(old) => old.conflict(&old.as_written(), files, default),
            None if self.loader.known(path).is_some() => self.loader.conflict(path, files),
            None => None,
        };
        if let Some(conflict) = conflict {
            return Err(format!(
                "'{path}' in crt-list '{list}' line {number}, is already defined with incompatible parameters: \
                 {conflict}"
            ));
        }
        let known = old.is_some() || self.loader.known(path).is_some();
        let missing =
            |error: &io::Error| format!("unable to stat SSL certificate from file '{path}' : {}", reason(error));
        if known || path.starts_with('@') {
            return match known {
                true => Ok(vec![self.push(path, files, None)?]),
                false => Err(missing(&io::ErrorKind::NotFound.into())),
            };
        }
        match self.loader.read(path) {
            Ok(pem) => {
                let files = NamedFiles { crt: Some(path.to_owned()), ..files.clone() };
                Ok(vec![self.push(path, &files, Some(pem))?])
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let slots = self.push_bundle(path)?;
                if slots.is_empty() {
                    return Err(missing(&error));
                }
                if files.origin != Origin::Plain {
                    return Err(format!(
                        "Can't load '{path}'. Using crt-store keyword is not compatible with multi certificates bundle"
                    ));
                }
                Ok(slots)
            }
            Err(_) => Err(format!("cannot open the file '{path}'")),
        }
    }

    /// Adds a certificate of a `crt-store`, whose name must be new.
    pub(super) fn add_named(&mut self, name: &str, files: NamedFiles) -> Result<Slot, String> {
        if self.slots.contains_key(name) || self.loader.known(name).is_some() {
            return Err(format!("store '{name}' was already defined"));
        }
        self.push(name, &files, None)
    }

    /// Adds the certificate of a line that was added at run time: from its file or, without one, as it was set.
    pub(super) fn push_again(&mut self, pair: &Arc<Pair>) -> Result<Slot, String> {
        let name = pair.path.as_str();
        let loader = self.loader;
        if self.slots.contains_key(name) || loader.known(name).is_some() {
            return self.push(name, &NamedFiles::default(), None);
        }
        let (named, default) = (loader.previous_files(name), NamedFiles::default());
        let named = named.as_ref().unwrap_or(&default);
        match loader.read(named.crt.as_deref().unwrap_or(name)) {
            Ok(pem) => self.push(name, named, Some(pem)),
            Err(_) => {
                let source = loader.previous.as_ref().and_then(|previous| previous.sources.get(name));
                if let Some(source) = source {
                    loader.loaded.borrow_mut().sources.insert(name.into(), source.clone());
                }
                loader.keep(pair.clone(), named.clone());
                self.push(name, named, None)
            }
        }
    }

    /// Adds those certificates of a bundle whose files exist.
    fn push_bundle(&mut self, path: &str) -> Result<Vec<Slot>, String> {
        let mut slots = Vec::new();
        for kind in BUNDLE.iter().filter(|_| self.loader.global.extra_files.bundle) {
            let name = format!("{path}.{kind}");
            let known = self.slots.contains_key(&name) || self.loader.known(&name).is_some();
            let pem = if known { None } else { self.loader.read(&name).ok() };
            if known || pem.is_some() {
                slots.push(self.push(&name, &NamedFiles::default(), pem)?);
            }
        }
        Ok(slots)
    }

    /// Adds a certificate by its name, with the content of its file if that has been read.
    fn push(&mut self, name: &str, files: &NamedFiles, pem: Option<Vec<u8>>) -> Result<Slot, String> {
        if let Some(slot) = self.slots.get(name) {
            return Ok(Slot(*slot));
        }
        let wanted = match self.loader.known(name) {
            Some(pair) => Wanted::Known(pair),
            None => Wanted::Read(Box::new(self.loader.gather(name, files, pem)?)),
        };
        let slot = self.wanted.len();
        self.wanted.push((wanted, files.clone()));
        self.slots.insert(name.to_owned(), slot);
        Ok(Slot(slot))
    }

    /// Returns the certificates by their slots, or the first that can't be loaded, with its error.
    pub(super) fn finish(self) -> Result<Vec<Arc<Pair>>, (Slot, String)> {
        let mut known = Vec::with_capacity(self.wanted.len());
        let mut read = Vec::new();
        let mut files = Vec::new();
        for (wanted, named) in self.wanted {
            match wanted {
                Wanted::Known(pair) => known.push(Some(pair)),
                Wanted::Read(pair_files) => {
                    known.push(None);
                    let source = self.loader.source(&named, &pair_files);
                    files.push((named, source, pair_files.ocsp.as_ref().map(|(path, _)| path.clone())));
                    read.push(*pair_files);
                }
            }
        }
        let mut parsed = self.loader.parse(read).into_iter().zip(files);
        let mut pairs = Vec::with_capacity(known.len());
        for (slot, known) in known.into_iter().enumerate() {
            pairs.push(match known {
                Some(pair) => pair,
                None => {
                    let (parsed, (named, source, ocsp)) = parsed.next().expect("each that was read has been parsed");
                    let checked = parsed.and_then(|pair| with_issuer(pair, ocsp.as_deref()));
                    let pair = checked.map_err(|message| (Slot(slot), message))?;
                    let mut loaded = self.loader.loaded.borrow_mut();
                    loaded.sources.insert(pair.path.as_str().into(), source);
                    drop(loaded);
                    self.loader.keep(pair, named)
                }
            });
        }
        Ok(pairs)
    }
}

/// Refuses an OCSP response whose issuer is not known.
fn with_issuer(pair: Arc<Pair>, ocsp: Option<&str>) -> Result<Arc<Pair>, String> {
    match ocsp {
        Some(path) if pair.issuer().is_none() => Err(format!(
            "'{path}' is present and activates OCSP but it is impossible to compute the OCSP certificate ID (maybe the \
             issuer could not be found)"
        )),
        _ => Ok(pair),
    }
}

/// The certificates of one `crt`.
pub(super) struct Crt {
    /// The certificates, in order.
    pub(super) pairs: Vec<Arc<Pair>>,
    /// Whether they are one certificate with several key types.
    pub(super) is_bundle: bool,
    /// If it is a directory, the name of its list.
    pub(super) list: Option<Arc<str>>,
}

/// Returns a digest of texts, which identifies the contents of a list.
pub(super) fn digest(parts: &[impl AsRef<[u8]>]) -> [u8; 32] {
    Bundle::digest(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>())
}

/// Returns a path below a directory, unless it is absolute or begins with '@'.
pub(super) fn below(base: Option<&str>, path: &str) -> String {
    match base {
        Some(base) if !path.starts_with(['/', '@']) => format!("{base}/{path}"),
        _ => path.to_owned(),
    }
}

/// Returns whether a file of a directory of `crt` is a certificate.
fn is_certificate(name: &str) -> bool {
    !name.starts_with('.') && !BESIDE.iter().any(|end| name.ends_with(end))
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Returns the system's text of an error.
pub(crate) fn reason(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        return "No such file or directory".to_owned();
    }
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
