package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	disk "github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/pkg/response"
)

// Files in the state directory.
const (
	ledgerFile  = "ledger"
	createdFile = "created" // when Init ran; absent if an earlier version made the ledger
	lockFile    = "lock"
)

// errBroken means that a write of the ledger has failed. The state on disk is then unknown, so the process does nothing
// until it restarts.
var errBroken = errors.New("the ledger cannot be written")

// durable is a ledger on disk.
type durable struct {
	dir     string
	lock    *os.File
	created time.Time // when Init made the ledger; zero: unknown

	mu      sync.Mutex
	ledger  *ledger
	version uint64 // of the ledger: grows with each change

	writing sync.Mutex // held while the file is written; locked before mu
	written uint64     // the version on disk; guarded by writing
	broken  error      // guarded by writing

	lost func(error) // called once with the error when a write fails; nil, or set before the first change
}

// Init creates the empty ledger of a new executor process, and records the time. It refuses to replace an existing ledger
// unless forget is set; then it returns a description of the old one.
func Init(dir, cluster string, forget bool, now time.Time) (was string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("state directory %s: %w", dir, err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	path := filepath.Join(dir, ledgerFile)
	switch l, err := readLedger(path); {
	case errors.Is(err, fs.ErrNotExist):
	case !forget:
		return "", fmt.Errorf("ledger %s: it exists: want --forget to discard it", path)
	case err != nil:
		was = err.Error()
	default:
		was = fmt.Sprintf("token %d and %d attempts of cluster %s", l.token, len(l.entries), l.cluster)
	}
	b, err := newLedger(cluster).encode()
	if err != nil {
		return was, err
	}
	created, err := now.UTC().MarshalText()
	if err != nil {
		return was, fmt.Errorf("encode the creation time of the ledger: %w", err)
	}
	if err := disk.Whole(filepath.Join(dir, createdFile), created); err != nil {
		return was, err
	}
	return was, disk.Whole(path, b)
}

// readCreated returns the time at which Init made the ledger; zero if there is no file.
func readCreated(dir string) (created time.Time, err error) {
	path := filepath.Join(dir, createdFile)
	b, err := disk.Read(path, len(time.RFC3339Nano)+1)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err == nil {
		err = created.UnmarshalText(b)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("creation time of the ledger, in %s: %w: want that of 'lofamo-executor init', as in RFC 3339", path, err)
	}
	return created, nil
}

// open locks a directory and reads its ledger. Attempts in progress at the previous end of the process get the outcome
// NotKnown; interrupted is their number.
func open(dir, cluster string, now time.Time) (d *durable, interrupted int, err error) {
	lock, err := lockDir(dir)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	path := filepath.Join(dir, ledgerFile)
	l, err := readLedger(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, 0, fmt.Errorf("ledger %s: not found: without it, orders of a former leader would be obeyed; 'lofamo-executor init' "+
			"makes the ledger of a new process", path)
	case err != nil:
		return nil, 0, fmt.Errorf("ledger %s: %w: restore the file, or read the supervisors' newest token and use 'lofamo-executor "+
			"init --forget'", path, err)
	case l.cluster != cluster:
		return nil, 0, fmt.Errorf("ledger %s: it is of cluster %q: want %q", path, l.cluster, cluster)
	}
	created, err := readCreated(dir)
	if err != nil {
		return nil, 0, err
	}
	d = &durable{dir: dir, lock: lock, created: created, ledger: l}
	interrupted = l.interrupt(now)
	d.version++
	if err := d.commit(d.version); err != nil {
		return nil, 0, err
	}
	return d, interrupted, nil
}

// lockWait is how long a process waits for the lock. A child that a process has just forked holds the lock until its exec, even if that
// process has ended.
const lockWait = time.Second

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), lockWait, errors.New("another executor process has it"))
	defer cancel()
	if err := disk.Lock(ctx, f, 10*time.Millisecond); err != nil {
		return nil, errors.Join(fmt.Errorf("state directory %s: %w", dir, err), f.Close())
	}
	return f, nil
}

func readLedger(path string) (*ledger, error) {
	b, err := disk.Read(path, maxLedger)
	if err != nil {
		return nil, err
	}
	if len(b) > maxLedger {
		return nil, fmt.Errorf("it has more than %d bytes", maxLedger)
	}
	return decodeLedger(b)
}

// change changes the ledger in memory if f returns true. It returns the version to commit before any action based on
// the state that f saw.
func (d *durable) change(f func(l *ledger) bool) (version uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f(d.ledger) {
		d.version++
	}
	return d.version
}

// commit returns once a version is on disk. A caller that waits for another's write usually finds its own changes in
// the next one, so a thousand concurrent commits need a few writes.
func (d *durable) commit(v uint64) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	switch {
	case d.written >= v:
		return nil
	case d.broken != nil:
		return d.broken
	}
	d.mu.Lock()
	b, err := d.ledger.encode()
	at := d.version
	d.mu.Unlock()
	if err == nil {
		err = disk.Whole(filepath.Join(d.dir, ledgerFile), b)
	}
	if err != nil {
		// After a failed sync the state on disk is unknown; a later successful write proves nothing.
		d.broken = fmt.Errorf("%w: %w", errBroken, err)
		if d.lost != nil {
			d.lost(d.broken)
		}
		return d.broken
	}
	d.written = at
	return nil
}

// token returns the highest token seen.
func (d *durable) token() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ledger.token
}

// remembered returns the number of attempts in the ledger.
func (d *durable) remembered() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ledger.entries)
}

// find returns the latest attempt at a step, and the version to commit before any action based on it.
func (d *durable) find(a response.Attempt) (e entry, known bool, version uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, known = d.ledger.entries[stepKey{a.Response, a.Step}]
	return e, known, d.version
}

// close releases the ledger for another process. Nothing is written from then on.
func (d *durable) close() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.broken = errClosing
	return d.lock.Close()
}
