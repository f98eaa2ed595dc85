// Package regfile keeps the registers of pkg/watchdog in a file that both halves of a node map. The file and the
// mailbox are all that the halves share.
//
// The package moves words and guards. The meaning of words is in pkg/watchdog, and the consequences belong to the
// agent. It runs on Linux.
//
// # The file
//
// 8 KiB, preallocated. Page 0 holds the registers at the paper's addresses (Table VI), as 32-bit
// little-endian words changed by atomic operations. Page 1 is the extension page, for values without an
// address in the paper; all offsets are from 0x1000:
//
//	0x000       magic and layout version, 8 bytes
//	0x008,0x00c doorbell counters of the host and the DNP half
//	0x010,0x030 boot epochs of the host and the DNP half: two copies of (value, check), 8 bytes each
//	0x080       extension words, 4 bytes each: 6 link details, 6 neighbours' host words (in the order
//	            of grid.Directions), 3 last sensor values (temperature, power, voltage; in thousandths),
//	            the test words of the host and the DNP half, 6 marks of the links' peers (0 from earlier versions)
//	0x100       guards of the registers, 16 bytes each, in the order of guardedRegisters
//	0x500       guards of the extension words, 16 bytes each
//	0x800       192 counters of the DNP half, 4 bytes each, without guards: for people (64 in earlier versions, which left the others 0)
//
// # Guards
//
// A word has two guards, A and B, of 64 bits each: a sequence number and a CRC-32C over address,
// word (without its Valid bit) and sequence. A word is valid if either guard matches. The
// owner writes
//
//	A := guard(new)    word := new, valid    B := guard(new)
//
// so that the stored word has a guard after every instruction. An owner killed before the second
// store leaves the old word, one killed after it the new one, and nothing else is possible. (If A and
// B then differ, the next store first renews the guard that does not match.) The
// other half clears Valid by compare-and-swap; the guards do not cover that bit.
//
// A word that matches neither guard was torn, flipped or written by another program. It reads as corrupt,
// a miss for the watchdog, until its owner writes again. Up to six flipped bits over a word and a
// guard are always detected; flips in one guard alone are masked by the other. To write
// a register from outside, use Poke.
//
// # Limits of the kernel
//
// The file is preallocated where the file system can, so that a full disk cannot take a page away.
// File seals (F_ADD_SEALS) exist for memfds only, not for files with names, and the file needs its
// name so that a restarted half finds it: so anyone with write permission can truncate it. Every
// access therefore runs under debug.SetPanicOnFault, which turns the SIGBUS into an error here. Check
// detects a file that was unlinked, replaced or truncated.
package regfile

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Size is the size of a register file in bytes.
const Size = 2 * pageSize

const pageSize = 4096

// magic begins the extension page. Its last byte is the version of the layout.
const magic uint64 = 'L' | 'O'<<8 | 'F'<<16 | 'A'<<24 | 'M'<<32 | 'O'<<40 | 1<<56

var (
	// ErrInUse is wrapped if another process serves the same half of the register file.
	ErrInUse = errors.New("second agent on the same register file")
	// ErrCorrupt is wrapped if a word does not match its guards or has a value that no owner writes.
	ErrCorrupt = errors.New("register invalid")
	// ErrClosed is wrapped after Close.
	ErrClosed = errors.New("register file is closed")
)

// File is a mapped register file, opened by one half or read-only. Its methods may be called from
// several goroutines; they never block on the other half.
type File struct {
	path string
	half fault.Half // 0: read-only

	mu      sync.Mutex // guards mem and orders this half's stores
	mem     []byte     // nil after Close
	file    *os.File
	lock    *os.File
	locked  bool
	corrupt uint64
	// wrote marks the words that this File has written and therefore scrubs; wroteEpoch is the same for the boot epoch.
	wrote      [maxCells]bool
	wroteEpoch bool
	// replaced counts damaged words that stores have overwritten since the last Scrub; lost marks those that Scrub has
	// already counted.
	replaced int
	lost     [maxCells]bool
}

// Open maps the register file for one half, creating it if it does not exist, and takes the half's lock (path.host or
// path.dnp), which is held until Close or the end of the process. The error wraps ErrInUse if another process holds it.
func Open(path string, half fault.Half) (_ *File, err error) {
	if !half.Valid() {
		return nil, fmt.Errorf("open register file %s: half is %d: want host or dnp", path, half)
	}
	lock, err := takeLock(path, half)
	if err != nil {
		return nil, fmt.Errorf("open register file %s: %w", path, err)
	}
	f, err := open(path, half, os.O_CREATE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open register file %s: %w", path, err), lock.Close())
	}
	f.lock = lock
	return f, nil
}

// OpenReadOnly maps an existing register file for reading. It takes no lock.
func OpenReadOnly(path string) (*File, error) {
	f, err := open(path, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("open register file %s: %w", path, err)
	}
	return f, nil
}

// open maps path for a half, or read-only for half 0. create is os.O_CREATE or 0. Like takeLock, it refuses a symbolic
// link: the agent runs as root, and both would write to the link's target.
func open(path string, half fault.Half, create int) (_ *File, err error) {
	flags, prot := os.O_RDWR|create, unix.PROT_READ|unix.PROT_WRITE
	if half == 0 {
		flags, prot = os.O_RDONLY, unix.PROT_READ
	}
	file, err := os.OpenFile(path, flags|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	f := &File{path: path, half: half, file: file}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := f.prepare(); err != nil {
		return nil, err
	}
	f.mem, err = unix.Mmap(int(file.Fd()), 0, Size, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	// Only these two pages: mlockall would make a Go process 75 MB resident. Without the permission the pages may be
	// swapped out, which only makes accesses slow.
	f.locked = unix.Mlock(f.mem) == nil
	if err := f.access("check magic", f.checkMagic); err != nil {
		return nil, err
	}
	return f, nil
}

// prepare extends the file to its size. It never changes existing content: both halves may do this at the same time,
// and it restores a truncated file in place.
func (f *File) prepare() error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("is a %s: want a regular file", info.Mode().Type())
	case info.Size() > Size || f.half == 0 && info.Size() != Size:
		return fmt.Errorf("is %d bytes long: want %d: not a register file", info.Size(), Size)
	case f.half == 0:
		return nil
	}
	return Allocate(f.file, Size)
}

// checkMagic writes the magic into a new file, and refuses a file with another one.
func (f *File) checkMagic() error {
	at := f.u64(pageSize + offMagic)
	if f.half != 0 {
		at.compareAndSwap(0, magic)
	}
	if got := at.load(); got != magic {
		return fmt.Errorf("magic is 0x%016x: want 0x%016x: not a register file of this version", got, magic)
	}
	return nil
}

// Close unmaps the file and releases the half's lock. Closing twice does nothing. The file stays: the other half has it
// mapped.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	if f.mem != nil {
		errs = append(errs, unix.Munmap(f.mem))
		f.mem = nil
	}
	for _, file := range []**os.File{&f.file, &f.lock} {
		if *file != nil {
			errs = append(errs, (*file).Close())
			*file = nil
		}
	}
	return errors.Join(errs...)
}

// Path returns the path given to Open.
func (f *File) Path() string { return f.path }

// Half returns the half that opened the file, or 0 for a read-only File.
func (f *File) Half() fault.Half { return f.half }

// Corrupt returns how many reads by this File found a corrupt word.
func (f *File) Corrupt() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.corrupt
}

// Check detects conditions that mapped memory does not show: the file was truncated, unlinked or replaced, so that the
// two halves no longer share it. It makes two system calls: call it every second or so. Close and Open repair the
// condition.
func (f *File) Check() error {
	f.mu.Lock()
	file := f.file
	f.mu.Unlock()
	if file == nil {
		return fmt.Errorf("check register file %s: %w", f.path, ErrClosed)
	}
	if err := CheckMapped(file, f.path, Size); err != nil {
		return fmt.Errorf("check register file %s: %w", f.path, err)
	}
	return f.access("check magic", f.checkMagic)
}

// access runs fn on the mapping under the lock, and turns a fault in it into an error.
func (f *File) access(op string, fn func() error) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mem == nil {
		return fmt.Errorf("%s: register file %s: %w", op, f.path, ErrClosed)
	}
	if err := AccessMapped(f.mem, fn); err != nil {
		return fmt.Errorf("%s: register file %s: %w", op, f.path, err)
	}
	return nil
}
