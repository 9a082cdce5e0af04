//! An object store in memory, with a clock that the test moves and one fault at a step that the test chooses.
//!
//! Every request is a step. A list is one, and so is each object that is removed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use parking_lot::Mutex;

/// Ways in which a step goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process ends before the step: nothing that follows happens.
    KilledBefore,
    /// The process ends when the store has done the step.
    KilledAfter,
    /// The store refuses this step alone.
    Refused,
    /// The store does this step, and its answer is lost.
    Unanswered,
    /// The store acknowledges an object, and does not keep it.
    Forgotten,
    /// The store answers with one bit changed.
    Changed,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 6] = [
        Fault::KilledBefore,
        Fault::KilledAfter,
        Fault::Refused,
        Fault::Unanswered,
        Fault::Forgotten,
        Fault::Changed,
    ];

    /// True if the store tells no lies.
    pub fn is_honest(self) -> bool {
        !matches!(self, Fault::Forgotten | Fault::Changed)
    }

    fn kills(self) -> bool {
        matches!(self, Fault::KilledBefore | Fault::KilledAfter)
    }
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Path, (Bytes, Duration)>,
    now: Duration,
    steps: usize,
    fault: Option<(usize, Fault)>,
    is_dead: bool,
}

/// See the module. Clones are the same store.
#[derive(Debug, Clone, Default)]
pub struct Store(Arc<Mutex<State>>);

/// Outcome of a step.
enum Step {
    Done,
    Lost,
    Forgotten,
    Changed,
}

impl Store {
    /// From now on steps are counted, and this one goes wrong.
    pub fn arm(&self, fault: Option<(usize, Fault)>) {
        let mut state = self.0.lock();
        state.steps = 0;
        state.fault = fault;
        state.is_dead = false;
    }

    /// Steps since it was armed.
    pub fn steps(&self) -> usize {
        self.0.lock().steps
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.0.lock().now += time;
    }

    /// Copy of the store as it is now.
    pub fn copy(&self) -> Store {
        let state = self.0.lock();
        Store(Arc::new(Mutex::new(State {
            objects: state.objects.clone(),
            now: state.now,
            ..State::default()
        })))
    }
}

impl State {
    fn begin(&mut self) -> Result<Step> {
        let step = self.steps;
        self.steps += 1;
        if self.is_dead {
            return Err(unreachable());
        }
        let fault = self
            .fault
            .filter(|(at, _)| *at == step)
            .map(|(_, fault)| fault);
        self.is_dead = fault.is_some_and(Fault::kills);
        match fault {
            Some(Fault::KilledBefore | Fault::Refused) => Err(unreachable()),
            Some(Fault::KilledAfter | Fault::Unanswered) => Ok(Step::Lost),
            Some(Fault::Forgotten) => Ok(Step::Forgotten),
            Some(Fault::Changed) => Ok(Step::Changed),
            None => Ok(Step::Done),
        }
    }

    fn put(&mut self, location: &Path, bytes: Bytes, is_new: bool) -> Result<()> {
        let step = self.begin()?;
        if is_new && self.objects.contains_key(location) {
            step.end(())?;
            return Err(Error::AlreadyExists {
                path: location.to_string(),
                source: "it is there".into(),
            });
        }
        if !matches!(step, Step::Forgotten) {
            self.objects.insert(location.clone(), (bytes, self.now));
        }
        step.end(())
    }

    fn get(&mut self, location: &Path) -> Result<(Bytes, ObjectMeta)> {
        let step = self.begin()?;
        let Some((bytes, written)) = self.objects.get(location).cloned() else {
            step.end(())?;
            return Err(Error::NotFound {
                path: location.to_string(),
                source: "it is not there".into(),
            });
        };
        let bytes = match step {
            Step::Changed => with_one_bit_changed(&bytes),
            _ => bytes,
        };
        let meta = meta(location, &bytes, written);
        step.end((bytes, meta))
    }

    fn remove(&mut self, location: &Path) -> Result<()> {
        let step = self.begin()?;
        self.objects.remove(location);
        step.end(())
    }

    fn list(&mut self, prefix: Option<&Path>) -> Result<Vec<ObjectMeta>> {
        let step = self.begin()?;
        let all = self.objects.iter();
        let below =
            all.filter(|(location, _)| prefix.is_none_or(|prefix| location.prefix_matches(prefix)));
        let list = below.map(|(location, (bytes, written))| meta(location, bytes, *written));
        step.end(list.collect())
    }
}

impl Step {
    fn end<T>(&self, done: T) -> Result<T> {
        match self {
            Step::Lost => Err(unreachable()),
            _ => Ok(done),
        }
    }
}

fn with_one_bit_changed(bytes: &Bytes) -> Bytes {
    let mut changed = bytes.to_vec();
    let middle = changed.len() / 2;
    if let Some(byte) = changed.get_mut(middle) {
        *byte ^= 4;
    }
    changed.into()
}

fn meta(location: &Path, bytes: &Bytes, written: Duration) -> ObjectMeta {
    ObjectMeta {
        location: location.clone(),
        last_modified: (SystemTime::UNIX_EPOCH + written).into(),
        size: bytes.len() as u64,
        e_tag: None,
        version: None,
    }
}

fn unreachable() -> Error {
    Error::Generic {
        store: "simulated",
        source: "the store cannot be reached".into(),
    }
}

fn unused() -> Error {
    Error::NotImplemented {
        operation: "this".to_owned(),
        implementer: "the simulated store".to_owned(),
    }
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("simulated")
    }
}

#[async_trait]
impl ObjectStore for Store {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let is_new = options.mode == PutMode::Create;
        self.0.lock().put(location, payload.into(), is_new)?;
        Ok(PutResult {
            e_tag: None,
            version: None,
            extensions: Default::default(),
        })
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(unused())
    }

    async fn get_opts(&self, location: &Path, _: GetOptions) -> Result<GetResult> {
        let (bytes, meta) = self.0.lock().get(location)?;
        let range: Range<u64> = 0..meta.size;
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed()),
            meta,
            range,
            attributes: Attributes::default(),
            extensions: Default::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let state = self.0.clone();
        let removed = locations.and_then(move |location| {
            let removed = state.lock().remove(&location);
            async move { removed.map(|()| location) }
        });
        removed.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.0.lock().list(prefix) {
            Ok(list) => stream::iter(list).map(Ok).boxed(),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(unused())
    }

    async fn copy_opts(&self, from: &Path, to: &Path, _: CopyOptions) -> Result<()> {
        let mut state = self.0.lock();
        let (bytes, _) = state.get(from)?;
        state.put(to, bytes, false)
    }
}
