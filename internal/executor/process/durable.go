package process

import (
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

// The files in the state directory.
const (
	ledgerFile = "ledger"
	lockFile   = "lock"
)

// errBroken says that the ledger could not be written. What is on the disk is not known then, so nothing is done until
// the process is started again.
var errBroken = errors.New("the ledger cannot be written")

// durable is a ledger on a disk. All that it returns rests on what is on the disk.
type durable struct {
	dir  string
	lock *os.File

	mu      sync.Mutex
	ledger  *ledger
	version uint64 // of the ledger: grows with each change

	writing sync.Mutex // held while the file is written; taken before mu
	written uint64     // the version on the disk; under writing
	broken  error      // under writing

	lost func(error) // is told why, once, when a writing fails; set before anything can be changed, or nil
}

// Init makes the ledger of a new executor process: one that has seen nothing. It refuses where one is, unless it is told to
// forget what that one has seen; then it returns what that was, if it can be read.
func Init(dir, cluster string, forget bool) (was string, err error) {
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
		return "", fmt.Errorf("ledger %s: it exists: want --forget, if what it has seen is to be forgotten", path)
	case err != nil:
		was = err.Error()
	default:
		was = fmt.Sprintf("token %d and %d attempts of cluster %s", l.token, len(l.entries), l.cluster)
	}
	b, err := newLedger(cluster).encode()
	if err != nil {
		return was, err
	}
	return was, disk.Whole(path, b)
}

// open reads the ledger of a directory and holds it alone. What was under way when the process ended before is ended there: interrupted
// says how many those were.
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
		return nil, 0, fmt.Errorf("ledger %s: there is none: without it an order of a leader of old would be obeyed; 'lofamo-executor init' makes that of a new process", path)
	case err != nil:
		return nil, 0, fmt.Errorf("ledger %s: %w: bring the file back, or see what the supervisors' newest token is and use 'lofamo-executor init --forget'", path, err)
	case l.cluster != cluster:
		return nil, 0, fmt.Errorf("ledger %s: it is of cluster %q: want %q", path, l.cluster, cluster)
	}
	d = &durable{dir: dir, lock: lock, ledger: l}
	interrupted = l.interrupt(now)
	l.forget(now)
	d.version++
	if err := d.commit(d.version); err != nil {
		return nil, 0, err
	}
	return d, interrupted, nil
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("state directory %s: another executor process has it: %w", dir, err), f.Close())
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

// change changes the ledger in memory, as f says whether it did, and returns the version that is to be committed before anything rests
// on what f saw.
func (d *durable) change(f func(l *ledger) bool) (version uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f(d.ledger) {
		d.version++
	}
	return d.version
}

// commit returns once a version is on the disk. Whoever waits for another's writing finds its own changes written with the next one:
// a thousand at once cost a few writings.
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
		// Nobody knows what a disk has that has failed to sync: a writing that succeeds later proves nothing.
		d.broken = fmt.Errorf("%w: %w", errBroken, err)
		if d.lost != nil {
			d.lost(d.broken)
		}
		return d.broken
	}
	d.written = at
	return nil
}

// token returns the highest that was seen.
func (d *durable) token() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ledger.token
}

// remembered returns how many attempts are in the ledger.
func (d *durable) remembered() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ledger.entries)
}

// find returns the newest attempt at a step.
func (d *durable) find(a response.Attempt) (entry, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.ledger.entries[stepKey{a.Response, a.Step}]
	return e, ok
}

// close lets another process have the ledger: nothing is written from then on.
func (d *durable) close() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.broken = errClosing
	return d.lock.Close()
}
