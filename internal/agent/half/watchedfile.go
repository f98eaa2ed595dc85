package half

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
)

// WatchedFile is a file that another process replaces. One goroutine uses it.
type WatchedFile struct {
	Path string
	seen fileState
}

// fileState identifies one state of a file. Two files of one size that are written within a tick of the file system's clock differ only in
// the inode.
type fileState struct {
	at    time.Time
	size  int64
	inode uint64
}

// Watch returns a file whose present state counts as seen.
func Watch(path string) WatchedFile { return WatchedFile{path, stateOf(path)} }

// Changed reports whether the file has changed since the call before.
func (f *WatchedFile) Changed() bool {
	now := stateOf(f.Path)
	was := f.seen
	f.seen = now
	return now != was
}

// Again makes the next call of Changed return true. Call it after a failure to read the file.
func (f *WatchedFile) Again() { f.seen = fileState{size: -1} }

func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}
	}
	is := fileState{at: info.ModTime(), size: info.Size()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		is.inode = st.Ino
	}
	return is
}

// Handover is a file in which the other half leaves envelopes. A new envelope replaces the one before, which may be lost.
type Handover struct {
	WatchedFile
	what     string // the envelopes' content, for the log
	verifier *pki.Verifier
	log      *slog.Logger
}

// NewHandover returns the handover at path. An envelope that is there already counts as seen.
func (c *Common) NewHandover(path, what string) Handover {
	return Handover{Watch(path), what, c.Verifier, c.Log}
}

// Reserve makes room on disk for the envelopes that a half leaves at path, so that it can also leave them on a full disk.
func (c *Common) Reserve(path string) {
	if err := durable.Reserve(path, servicenet.MaxDatagram); err != nil {
		c.Log.Warn("no room reserved for messages to the other half", "file", path, "err", err)
	}
}

// Look gives a new envelope to take, which reports whether it is of the expected kind. Look logs why it cannot use an
// envelope.
func (h *Handover) Look(take func(servicenet.Opened) bool) {
	o, err := h.next()
	switch {
	case err != nil:
		h.log.Warn(h.what+" not read", "file", h.Path, "err", err)
	case o.Msg == nil: // nothing new
	case !take(o):
		h.log.Warn("envelope in the file is not the "+h.what+": not used", "file", h.Path)
	}
}

// next opens the envelope that has appeared since the previous call. Without a new one it returns neither a message
// nor an error.
func (h *Handover) next() (servicenet.Opened, error) {
	if !h.Changed() {
		return servicenet.Opened{}, nil
	}
	b, err := durable.Read(h.Path, servicenet.MaxDatagram)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 { // only its room is reserved
		return servicenet.Opened{}, nil
	} else if err != nil {
		return servicenet.Opened{}, err
	}
	return servicenet.Open(b, h.verifier)
}
