//! Memory that every process of the server shares. It exists only when the library is preloaded, has
//! its size for good, and starts from its defaults when the server starts, or starts again after a crash.

use std::cell::Cell;

use pgrx::pg_guard;
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::{AssertPGRXSharedMemory, PgAtomic, PgLwLock, PgSharedMemoryInitialization};

/// A piece of shared memory that [`register`] makes.
pub trait Area: Sync {
    fn request(&'static self);
    fn start_up(&'static self);
}

/// Plain data under a lock. Whatever runs under the lock is Rust alone: nothing that could raise.
pub struct Locked<T>(PgLwLock<AssertPGRXSharedMemory<T>>);

impl<T: Copy + Default + Send + 'static> Locked<T> {
    /// `name` must be the area's own.
    pub const fn new(name: &'static std::ffi::CStr) -> Self {
        // SAFETY: the name is unique; it also names the lock's tranche.
        Self(unsafe { PgLwLock::new(name) })
    }

    /// Looks at the data. Must not be nested, and only if [`is_available`].
    pub fn look<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.0.share())
    }

    /// Changes the data. Must not be nested, and only if [`is_available`].
    pub fn change<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.exclusive())
    }
}

impl<T: Copy + Default + Send + 'static> Area for Locked<T> {
    fn request(&'static self) {
        // SAFETY: called by the shmem_request_hook only. T is Copy: it owns nothing on any heap.
        unsafe { self.0.on_shmem_request() };
    }

    fn start_up(&'static self) {
        // SAFETY: called by the shmem_startup_hook only.
        unsafe { self.0.on_shmem_startup(AssertPGRXSharedMemory::new(T::default())) };
    }
}

/// Atomics without a lock, for what happens at every commit.
pub struct Lockless<T>(PgAtomic<AssertPGRXSharedMemory<T>>);

impl<T: Default + Sync + 'static> Lockless<T> {
    /// `name` must be the area's own; `T` consists of atomics.
    pub const fn new(name: &'static std::ffi::CStr) -> Self {
        // SAFETY: the name is unique.
        Self(unsafe { PgAtomic::new(name) })
    }

    /// `None` when the library is not preloaded.
    pub fn get(&'static self) -> Option<&'static T> {
        is_available().then(|| &**self.0.get())
    }
}

impl<T: Default + Sync + 'static> Area for Lockless<T> {
    fn request(&'static self) {
        // SAFETY: as for Locked.
        unsafe { self.0.on_shmem_request() };
    }

    fn start_up(&'static self) {
        // SAFETY: as for Locked.
        unsafe { self.0.on_shmem_startup(AssertPGRXSharedMemory::new(T::default())) };
    }
}

thread_local! {
    static AREAS: Cell<&'static [&'static dyn Area]> = const { Cell::new(&[]) };
    static IS_AVAILABLE: Cell<bool> = const { Cell::new(false) };
}

static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_START_UP: pg_sys::shmem_startup_hook_type = None;

/// Whether there is shared memory of ours: not without preload.
pub fn is_available() -> bool {
    IS_AVAILABLE.get()
}

/// Asks the postmaster for `areas`. Only while it loads shared_preload_libraries.
pub fn register(areas: &'static [&'static dyn Area]) {
    AREAS.set(areas);
    // SAFETY: the postmaster, single-threaded, before it forks; the hooks in force are kept and called.
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_START_UP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(start_up);
    }
}

// SAFETY: called by PostgreSQL alone, as shmem_request_hook.
#[pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: set once, before the hook can be called.
    if let Some(previous) = unsafe { PREVIOUS_REQUEST } {
        // SAFETY: a hook that some other library has put there to be called.
        unsafe { pg_guard_ffi_boundary(|| previous()) };
    }
    AREAS.get().iter().for_each(|area| area.request());
}

// SAFETY: called by PostgreSQL alone, as shmem_startup_hook.
#[pg_guard]
unsafe extern "C-unwind" fn start_up() {
    // SAFETY: set once, before the hook can be called.
    if let Some(previous) = unsafe { PREVIOUS_START_UP } {
        // SAFETY: a hook that some other library has put there to be called.
        unsafe { pg_guard_ffi_boundary(|| previous()) };
    }
    AREAS.get().iter().for_each(|area| area.start_up());
    IS_AVAILABLE.set(true);
}
