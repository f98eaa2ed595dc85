package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

var (
	// ErrInUse is wrapped when another process may write the file.
	ErrInUse = errors.New("another process has it")
	// ErrCold is wrapped when the file holds no state to resume from.
	ErrCold = errors.New("nothing to resume from")
	// ErrClosed is wrapped after Close.
	ErrClosed = errors.New("is closed")
	// ErrTooLong is wrapped when a payload does not fit its cell.
	ErrTooLong = errors.New("does not fit")
	// ErrGone is wrapped while there is no file: see Maintain.
	ErrGone = errors.New("there is no file")
)

// CopyIdentity identifies the owner of a copy.
type CopyIdentity struct {
	Node fault.NodeID
	Half fault.Half
	Boot [16]byte // the kernel's boot id
	// Place is the node's place in the torus, x,y,z. A copy from another place is cold. Empty: any place is good.
	Place string
}

// CopyFile is the copy of one half. Its methods may be called from several goroutines. Only those that make or repair the
// file allocate.
type CopyFile struct {
	path string
	id   CopyIdentity
	lay  layout

	mu    sync.Mutex
	cells []byte // the intended content of the file's copies, laid out like one of them
	mem   []byte // nil: there is no file, or it is spoilt
	file  *os.File
	shut  bool
	why   string // why the half begins cold
	stamp stamp
	stats CopyStats

	reports reportSlots
}

// CopyStats count since OpenCopy, except for Reports.
type CopyStats struct {
	Lost    int    // cells that both copies had lost at OpenCopy
	Mended  int    // places of cells that were repaired from the other copy
	Made    uint64 // times that the file was recreated
	Failed  uint64 // stores that did not reach the file
	NoRoom  uint64 // reports and messages not stored: no free slot, or too long for one
	Reports int    // held now
}

// busyTries is how often OpenCopy tries to take a file, 5 ms apart: a daemon may be about to release it. OpenCopy counts tries instead of
// time, because a stalled machine delays the daemon too.
const busyTries = 50

// OpenCopy maps the copy of a half that starts, and takes its lock. It always returns a CopyFile. Cold names the defect of
// a file from which the half could not resume; the error, if any, tells why there is no file now.
func OpenCopy(path string, id CopyIdentity) (*CopyFile, error) {
	f := newFile(path, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.take()
	for tries := 1; errors.Is(err, ErrInUse) && tries < busyTries; tries++ {
		time.Sleep(5 * time.Millisecond)
		err = f.take()
	}
	if err == nil {
		return f, f.namePlace()
	}
	f.becomeCold(err.Error())
	if errors.Is(err, fs.ErrNotExist) {
		f.why = "there was none"
	}
	return f, f.make()
}

// OpenCopyForDaemon maps the copy of a dead half, for its recovery daemon, and takes its lock. The error wraps ErrInUse
// if the half lives, and ErrCold if the file holds no state to resume from.
func OpenCopyForDaemon(path string, id CopyIdentity) (*CopyFile, error) {
	f := newFile(path, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.take(); err != nil {
		return nil, fmt.Errorf("copy %s: %w", path, err)
	}
	return f, nil
}

// ReadCopy reads the current copy, for people and tests, while any process writes it. It takes no lock and changes
// nothing. The CopyFile belongs to the caller, and stores into it go nowhere. A process may store a cell while ReadCopy
// reads either of its places, so ReadCopy retries when a cell seems lost.
func ReadCopy(path string, id CopyIdentity) (*CopyFile, error) {
	for range 4 {
		if f, err := look(path, id); err != nil || f.stats.Lost == 0 {
			return f, err
		}
	}
	return look(path, id)
}

func look(path string, id CopyIdentity) (*CopyFile, error) {
	f := newFile(path, id)
	f.shut = true
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", path, err)
	}
	mem := make([]byte, 2*f.lay.half)
	if _, err = io.ReadFull(file, mem); err == nil {
		if err = f.takeCells(mem); err == nil {
			err = f.checkHead(file)
		}
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("copy %s: %w: %w", path, ErrCold, err)
	}
	f.takeReports()
	return f, nil
}

func newFile(path string, id CopyIdentity) *CopyFile {
	f := &CopyFile{path: path, id: id, lay: newLayout(id.Half)}
	f.cells = make([]byte, f.lay.half)
	f.reports = newReportSlots()
	return f
}

// becomeCold clears all loaded cells.
func (f *CopyFile) becomeCold(why string) {
	f.why = why
	clear(f.cells)
	f.reports = newReportSlots()
}

// take opens the file that is there, takes its lock and loads it.
func (f *CopyFile) take() error {
	file, err := os.OpenFile(f.path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCold, err)
	}
	mem, err := f.load(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.mem = file, mem
	return nil
}

// load locks and maps a file, and loads its cells. Without an error it returns the mapping.
func (f *CopyFile) load(file *os.File) ([]byte, error) {
	if err := lock(file); err != nil {
		return nil, err
	}
	size := int64(2 * f.lay.half)
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() != size {
		return nil, fmt.Errorf("it is no copy of this version: %w", errors.Join(ErrCold, err))
	}
	if err := regfile.CheckMapped(file, f.path, size); err != nil { // replaced before it was locked
		return nil, fmt.Errorf("%w: %w", ErrCold, err)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%w: map: %w", ErrCold, err)
	}
	err = regfile.AccessMapped(mem, func() error { return f.takeCells(mem) })
	if err == nil {
		err = f.checkHead(file)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrCold, err), unix.Munmap(mem))
	}
	f.takeReports()
	return mem, nil
}

func lock(file *os.File) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrInUse
	}
	return err
}

// takeCells reads all cells, and repairs those that one copy has lost.
func (f *CopyFile) takeCells(mem []byte) error {
	a, b := mem[:f.lay.half], mem[f.lay.half:]
	for _, c := range f.lay.all {
		ca, cb := c.in(a), c.in(b)
		best, mendA, mendB := c.choose(ca, cb)
		if best == nil && blank(ca) && blank(cb) {
			continue
		}
		if best == nil {
			f.stats.Lost++
			clear(ca)
			clear(cb)
			continue
		}
		copy(c.in(f.cells), best)
		if mendA {
			f.stats.Mended++
			copy(ca, best)
		}
		if mendB {
			f.stats.Mended++
			copy(cb, best)
		}
	}
	return nil
}

// make recreates the file, with all cells in it, in place of the present one.
func (f *CopyFile) make() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make copy %s: %w", f.path, err)
		}
	}()
	f.spoil() // even if make fails, no half may trust the old one
	tmp := f.path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	mem, err := f.fill(file)
	if err == nil {
		if err = os.Rename(tmp, f.path); err == nil {
			f.file, f.mem = file, mem
			f.stats.Made++
			return nil
		}
		err = errors.Join(err, unix.Munmap(mem))
	}
	return errors.Join(err, file.Close(), os.Remove(tmp))
}

// fill makes an empty file a copy.
func (f *CopyFile) fill(file *os.File) ([]byte, error) {
	if err := lock(file); err != nil {
		return nil, err
	}
	if err := regfile.Allocate(file, int64(2*f.lay.half)); err != nil {
		return nil, err
	}
	if err := f.setHead(file); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, 2*f.lay.half, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	err = regfile.AccessMapped(mem, func() error {
		for _, c := range slices.Backward(f.lay.all) { // the head last: without it there is no copy
			if u, good := c.used(c.in(f.cells)); good {
				copy(c.in(mem[f.lay.half:]), u)
				copy(c.in(mem), u)
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(mem))
	}
	return mem, nil
}

// spoil makes the file unusable for a resume, and unmaps it.
func (f *CopyFile) spoil() {
	if f.mem != nil {
		for _, at := range [2]int{0, f.lay.half} {
			_ = regfile.AccessMapped(f.mem, func() error { clear(f.lay.head.in(f.mem[at:])); return nil })
		}
	}
	_ = f.release()
}

func (f *CopyFile) release() error {
	var errs []error
	if f.mem != nil {
		errs = append(errs, unix.Munmap(f.mem))
		f.mem = nil
	}
	if f.file != nil {
		errs = append(errs, f.file.Close())
		f.file = nil
	}
	return errors.Join(errs...)
}

// store puts a payload into a cell: into both copies, one after the other.
func (f *CopyFile) store(c cell, payload []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.storeLocked(c, payload)
}

func (f *CopyFile) storeLocked(c cell, payload []byte) error {
	if len(payload) > c.room() {
		f.stats.NoRoom++
		return fmt.Errorf("cell %d of copy %s: %d bytes: %w", c.number, f.path, len(payload), ErrTooLong)
	}
	own := c.in(f.cells)
	n := c.put(own, sequenceOf(own)+1, payload)
	switch {
	case f.shut:
		return fmt.Errorf("copy %s: %w", f.path, ErrClosed)
	case f.mem == nil:
		f.stats.Failed++
		return fmt.Errorf("copy %s: %w", f.path, ErrGone)
	}
	err := regfile.AccessMapped(f.mem, func() error {
		failpoint.Hit(failpoint.CommitBefore)
		copy(f.mem[c.at:], own[:n])
		failpoint.Hit(failpoint.CommitBetween)
		copy(f.mem[f.lay.half+c.at:], own[:n])
		failpoint.Hit(failpoint.CommitAfter)
		return nil
	})
	if err != nil {
		f.stats.Failed++
		f.spoil()
		return fmt.Errorf("copy %s: %w", f.path, err)
	}
	return nil
}

// payload returns a cell's content: nil for one that was never written, or was lost. It belongs to the CopyFile and is
// valid until the next store into that cell.
func (f *CopyFile) payload(c cell) []byte {
	if c.size == 0 {
		return nil
	}
	u, good := c.used(c.in(f.cells))
	if !good {
		return nil
	}
	return u[headerSize:]
}

// Maintain detects that the file was truncated, unlinked or replaced, and recreates it with all its cells. In an
// intact file it repairs flipped bits, before a second flip hits the other place too. It then makes two system calls,
// and reads some hundred kilobytes at most: call it once a second. The error tells why there is no file now.
func (f *CopyFile) Maintain() (made bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shut {
		return false, fmt.Errorf("copy %s: %w", f.path, ErrClosed)
	}
	if f.mem != nil {
		if regfile.CheckMapped(f.file, f.path, int64(2*f.lay.half)) == nil && regfile.AccessMapped(f.mem, f.mend) == nil {
			return false, nil
		}
	}
	if err := f.make(); err != nil {
		return false, err
	}
	return true, nil
}

// mend makes the three places of every cell equal: the two in the file, and the one in our own memory, which may have
// flipped as well.
func (f *CopyFile) mend() error {
	for _, c := range f.lay.all {
		own := c.in(f.cells)
		if blank(own) {
			continue // never used: its pages of the file need not be resident
		}
		a, b := c.in(f.mem), c.in(f.mem[f.lay.half:])
		u, good := c.used(own)
		if !good {
			if u, _, _ = c.choose(a, b); u == nil {
				continue // all are lost
			}
			f.stats.Mended++
			copy(own, u)
		}
		for _, place := range [2][]byte{a, b} {
			if !bytes.Equal(place[:len(u)], u) {
				f.stats.Mended++
				copy(place, u)
			}
		}
	}
	return nil
}

// Cold returns why the half begins without earlier state; empty: it resumes.
func (f *CopyFile) Cold() string { return f.why }

// GoCold clears the copy, which is of no use to the half for the given reason.
func (f *CopyFile) GoCold(why string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.becomeCold(why)
	return f.make()
}

// Path returns the file's name.
func (f *CopyFile) Path() string { return f.path }

// Stats returns the counters.
func (f *CopyFile) Stats() CopyStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Reports = len(f.reports.at)
	return s
}

// Close unmaps the file and releases its lock. The content stays for the next Open. Closing twice does nothing.
func (f *CopyFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shut = true
	return f.release()
}
