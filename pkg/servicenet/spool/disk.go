package spool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrInUse says that another process has the file open as its spool.
var ErrInUse = errors.New("in use by another process")

// file is the writer's view of an open file. Sync is fdatasync.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Sync() error
}

// diskFile is a file whose Sync leaves the times out.
type diskFile struct{ *os.File }

func (f diskFile) Sync() error { return os.NewSyscallError("fdatasync", unix.Fdatasync(int(f.Fd()))) }

// attached is a spool file that is open, locked and read.
type attached struct {
	file file
	ring *ring
}

// notes collects remarks on a file that was opened.
type notes []string

func (n *notes) add(format string, args ...any) { *n = append(*n, fmt.Sprintf(format, args...)) }

// isDisk reports whether the disk itself fails, which may pass, and not its content.
func isDisk(err error) bool {
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// attach opens or makes the file. The found records are valid even beside an error of the disk.
func attach(cfg Config, say *notes) (attached, found, error) {
	f, err := openLocked(cfg.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return create(cfg)
	}
	if err != nil {
		return attached{}, found{}, err
	}
	a, got, err := read(cfg, f, say)
	if a.file == nil || err != nil {
		err = errors.Join(err, f.Close())
	}
	if errors.Is(err, errGarbled) {
		if rerr := setAside(cfg.Path); rerr != nil {
			return attached{}, found{}, errors.Join(err, rerr)
		}
		say.add("%v: set aside as %s.bad", err, cfg.Path)
		return create(cfg)
	}
	return a, got, err
}

// openLocked opens the file that is there. On a file system that is read-only, or has become so, it can
// still be read.
func openLocked(path string) (*os.File, error) {
	const flags = unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0)
	if errors.Is(err, unix.EROFS) {
		f, err = os.OpenFile(path, os.O_RDONLY|flags, 0)
	}
	if err != nil {
		return nil, err
	}
	if err := lock(f, path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lock locks the file for this process, and checks that its name still refers to this file.
func lock(f *os.File, path string) error {
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("spool %s: %w", path, ErrInUse)
	case err != nil:
		return os.NewSyscallError("flock", err)
	}
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(mine, named) {
		return fmt.Errorf("spool %s: %w: it has just been replaced", path, ErrInUse)
	}
	if !mine.Mode().IsRegular() {
		return fmt.Errorf("spool %s: not a regular file", path)
	}
	return nil
}

// removed reports whether the name of an open spool is gone. It returns an error if the name refers to another file now.
func removed(f *os.File, path string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	case !os.SameFile(mine, named):
		return false, taken(path)
	}
	return false, nil
}

// taken returns the error of a spool whose name refers to another file.
func taken(path string) error { return fmt.Errorf("spool %s: another file has taken its place", path) }

// replace puts the un-freed reports of an open spool whose name is gone into a new file. The new file is as large as the old one, which
// may differ from the configured size. replace returns an error if another file takes the name meanwhile.
func replace(cfg Config, f *os.File, old *ring, say *notes) (attached, found, error) {
	image, unreadable, err := readImage(f)
	if err != nil {
		return attached{}, found{}, err
	}
	records := image[min(ringStart, len(image)):]
	got := scanRing(records[:min(old.size, int64(len(records)))], old.id)
	got.damaged += unreadable
	if old.size != ringSize(cfg.Size) {
		cfg.Size = ringStart + old.size
	}
	a, err := carryOver(cfg, got, say, renameToFree, syncDir)
	return a, got, err
}

// read makes sense of a file.
func read(cfg Config, f *os.File, say *notes) (attached, found, error) {
	image, unreadable, err := readImage(f)
	if err != nil {
		return attached{}, found{}, err
	}
	h, err := decodeHeader(image)
	switch {
	case errors.Is(err, errNoHeader):
		a, err := format(f, cfg)
		return a, found{next: 1}, err
	case err != nil:
		return attached{}, found{}, fmt.Errorf("spool %s: %w", cfg.Path, err)
	case h.origin != cfg.Origin:
		return attached{}, found{}, fmt.Errorf("spool %s: given one of %s: want one of %s", cfg.Path, h.origin, cfg.Origin)
	}
	size := ringSize(min(h.size, MaxSize))
	records := image[min(ringStart, len(image)):]
	got := scanRing(records[:min(size, int64(len(records)))], h.id)
	got.damaged += unreadable
	if err := repair(f, h, image, say); err != nil {
		return attached{}, got, err
	}
	r := recoverRing(h.id, size, got)
	if h.size == cfg.Size && r.free() >= r.freeReserve() {
		return attached{diskFile{f}, r}, got, nil
	}
	a, err := carryOver(cfg, got, say, os.Rename, syncDir)
	if err != nil {
		say.add("carry the reports of spool %s over to a file of %d bytes: %v: it stays at %d bytes", cfg.Path, cfg.Size, err, h.size)
		return attached{diskFile{f}, r}, got, nil
	}
	say.add("spool %s has now %d bytes, before %d", cfg.Path, cfg.Size, h.size)
	if err := f.Close(); err != nil {
		say.add("close the old spool %s: %v", cfg.Path, err)
	}
	return a, got, nil
}

// readImage reads the whole file, at most MaxSize. Pages that the disk does not give are zero and counted.
func readImage(f *os.File) (image []byte, unreadable int, err error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	image, unreadable = readPages(f, min(info.Size(), MaxSize))
	return image, unreadable, nil
}

func readPages(f io.ReaderAt, size int64) (image []byte, unreadable int) {
	image = make([]byte, size)
	if n, err := f.ReadAt(image, 0); err == nil || errors.Is(err, io.EOF) {
		return image[:n], 0
	}
	for at := 0; at < len(image); at += headerStride {
		page := image[at:min(at+headerStride, len(image))]
		if n, err := f.ReadAt(page, int64(at)); err != nil && n < len(page) {
			clear(page)
			unreadable++
		}
	}
	return image, unreadable
}

// repair restores the lost parts of a file: a copy of the header, its end.
func repair(f *os.File, h header, image []byte, say *notes) error {
	if int64(len(image)) < min(h.size, MaxSize) {
		say.add("spool %s was cut off: it has %d bytes of %d", f.Name(), len(image), h.size)
		if err := allocate(f, h.size); err != nil {
			return err
		}
	}
	for at := 0; at < ringStart; at += headerStride {
		if _, err := decodeHeaderCopy(image[min(at, len(image)):]); err == nil {
			continue
		}
		say.add("spool %s: a copy of its header was garbled: written again", f.Name())
		if _, err := f.WriteAt(encodeHeader(h), int64(at)); err != nil {
			return err
		}
	}
	return writable(f)
}

// writable refuses a file that could only be opened for reading.
func writable(f *os.File) error {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		return &fs.PathError{Op: "open", Path: f.Name(), Err: unix.EROFS}
	}
	return nil
}

// create makes a new file, or none if there is no room.
func create(cfg Config) (attached, found, error) {
	f, err := os.OpenFile(cfg.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return attached{}, found{}, err
	}
	if err := lock(f, cfg.Path); err != nil {
		return attached{}, found{}, errors.Join(err, f.Close())
	}
	a, err := format(f, cfg)
	if err == nil {
		err = syncDir(cfg.Path)
	}
	if err != nil {
		return attached{}, found{}, errors.Join(err, os.Remove(cfg.Path), f.Close())
	}
	return a, found{next: 1}, nil
}

// format makes an empty spool of a file. The header is the last: until then the file does not count as a spool.
func format(f *os.File, cfg Config) (attached, error) {
	h := header{origin: cfg.Origin, size: cfg.Size}
	if _, err := rand.Read(h.id[:]); err != nil {
		return attached{}, err
	}
	if err := allocate(f, h.size); err != nil {
		return attached{}, err
	}
	for at := int64(0); at < ringStart; at += headerStride {
		if _, err := f.WriteAt(encodeHeader(h), at); err != nil {
			return attached{}, err
		}
	}
	if err := f.Sync(); err != nil {
		return attached{}, err
	}
	return attached{diskFile{f}, newRing(h.id, ringSize(h.size))}, nil
}

// allocate gives every byte of the file its place on the disk, as far as the file system knows how to.
func allocate(f *os.File, size int64) error {
	err := ignoringEINTR(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, size) })
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return os.NewSyscallError("fallocate", err)
	}
	return fillZeros(f, size)
}

// ignoringEINTR repeats a system call while a signal interrupts it.
func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// fillZeros extends the file with zeros up to size.
func fillZeros(f *os.File, size int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<16)
	for at := info.Size(); at < size; {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// carryOver puts the un-freed reports into a new file of the configured size, in place of the old. If it returns an error, the old
// file is still in its place. rename gives the new file its name. sync is syncDir.
func carryOver(cfg Config, got found, say *notes, rename func(from, to string) error, sync func(path string) error) (
	a attached, err error) {
	name := cfg.Path + ".new"
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return attached{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(name), f.Close())
		}
	}()
	if err := lock(f, name); err != nil {
		return attached{}, err
	}
	if a, err = format(f, cfg); err != nil {
		return attached{}, err
	}
	b := a.ring.begin()
	for _, e := range got.reports {
		r := e.record(cfg.Origin)
		if !b.admits(r) || !b.report(r, a.ring.reportReserve()) {
			return attached{}, fmt.Errorf("%d reports do not fit: want at most %d bytes of them", len(got.reports), a.ring.mostReports())
		}
	}
	if !b.empty() {
		if err := write(a.file, b); err != nil {
			return attached{}, err
		}
		a.ring.commit(b)
	}
	if err := rename(name, cfg.Path); err != nil {
		return attached{}, err
	}
	if err := sync(cfg.Path); err != nil { // the old file has no name any more, so there is no way back
		say.add("sync the directory of spool %s: %v: a power loss may bring its old file back", cfg.Path, err)
	}
	return a, nil
}

// renameToFree renames a file, and returns an error if the new name is in use. On a file system that cannot check this, it replaces the
// file of that name.
func renameToFree(from, to string) error {
	err := ignoringEINTR(func() error { return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE) })
	switch {
	case errors.Is(err, unix.EEXIST):
		return taken(to)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return os.Rename(from, to)
	}
	return os.NewSyscallError("renameat2", err)
}

// write puts a batch on disk. It may be called again with the same batch.
func write(f file, b *batch) error {
	for _, p := range b.pieces {
		if _, err := f.WriteAt(p.data, ringStart+p.at); err != nil {
			return err
		}
	}
	return f.Sync()
}

func setAside(path string) error {
	if err := os.Rename(path, path+".bad"); err != nil {
		return err
	}
	return syncDir(path)
}

func syncDir(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
