package half

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
)

// windowFiles carries files of the state directory to the other half's kernel and back: the list of revoked certificates,
// the peers from supervisors, and the certificate requests of the DNP half with their answers. The halves find
// new files there as on one kernel. What arrives is verified and on disk before this end states that it has it.
type windowFiles struct {
	w      *Window
	in     chan fileMail // messages of the other end
	holder atomic.Uint64 // counts the processes that have held the other half's side
	denied atomic.Uint64 // version of the list of revoked certificates that the other half has in force and on disk

	core  *halfcore.FileExchange // owned by run, as are:
	from  uint64                 // the holder whose messages core knows
	files []windowFile
	wrong Condition // a message or a file of the other half
}

// fileMail is a message of the other end.
type fileMail struct {
	holder uint64 // that sent it
	b      []byte
}

// windowFile is one file at this end.
type windowFile struct {
	WatchedFile
	halfcore.HeldFile
	read   bool
	broken Condition // the file cannot be read or written
}

// windowFilesEvery is how often each end states what it has.
const windowFilesEvery = time.Second

// windowFilesWaiting bounds the messages that wait for the disk. Lost ones are asked for again.
const windowFilesWaiting = 64

func newWindowFiles(w *Window) *windowFiles {
	c := w.common
	file := func(id halfcore.FileID, path string, most int) windowFile {
		return windowFile{WatchedFile: Watch(path), HeldFile: halfcore.HeldFile{ID: id, Most: most}}
	}
	return &windowFiles{
		w: w, in: make(chan fileMail, windowFilesWaiting), core: halfcore.NewFileExchange(c.Half),
		files: []windowFile{
			file(halfcore.FileRevoked, c.StatePath(pki.DenyListFile), pki.MaxDenyListSize),
			file(halfcore.FilePeers, storage.PeerOrders().Path(c.Config.StateDir), peers.MaxSize),
			file(halfcore.FileRenewRequest, c.StatePath(DnpRequestFile), servicenet.MaxDatagram),
			file(halfcore.FileRenewAnswer, c.StatePath(DnpAnswerFile), servicenet.MaxDatagram),
		},
	}
}

// take queues a message of the other end. It does not block.
func (f *windowFiles) take(b []byte) {
	select {
	case f.in <- fileMail{f.holder.Load(), append([]byte(nil), b...)}:
	default: // the disk hangs, or the other end sends more than was asked for
	}
}

// newHolder notes that another process holds the other half's side. It may have lost its disk, so what the former one had there does not
// count any more. Calls do not overlap with take.
func (f *windowFiles) newHolder() {
	f.holder.Add(1)
	f.denied.Store(0)
}

// run exchanges files until ctx ends. No other goroutine waits for the disk here.
func (f *windowFiles) run(ctx context.Context) {
	t := time.NewTicker(windowFilesEvery)
	defer t.Stop()
	f.look()
	for {
		var send [][]byte
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f.look()
			send = f.core.Tick()
		case m := <-f.in:
			send = f.hear(time.Now(), m)
		}
		for _, b := range send {
			f.w.post(mailbox.Message{Type: mailbox.Files, Payload: b})
		}
	}
}

// look reads the files that have changed.
func (f *windowFiles) look() {
	for i := range f.files {
		file := &f.files[i]
		if file.Changed() || !file.read {
			b, err := durable.Read(file.Path, file.Most)
			if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 { // only its room is reserved
				b, err = nil, nil
			}
			file.broken.Set(f.w.common.Log, "reading "+file.Path+" for the other half's kernel", err)
			if file.read = err == nil; !file.read {
				b = nil
			}
			file.Data = b
		}
		if file.Version = 0; file.ID == halfcore.FileRevoked && len(file.Data) > 0 {
			file.Version = f.w.common.Trust.Stored.Load()
		}
		f.core.Hold(file.HeldFile)
	}
}

// hear takes a message of the other end.
func (f *windowFiles) hear(now time.Time, m fileMail) [][]byte {
	if m.holder != f.holder.Load() {
		return nil // of a process that is gone
	}
	if m.holder != f.from {
		f.core.Forget()
		f.from = m.holder
	}
	send, got, err := f.core.Hear(now, m.b)
	if err == nil && got.Data != nil {
		if err = f.keep(got); err != nil {
			f.core.Refuse(now, got.ID, got.Data)
			err = fmt.Errorf("%s: %w", got.ID, err)
		} else {
			f.look()
		}
	}
	if err != nil || got.Data != nil {
		f.wrong.Set(f.w.common.Log, "taking a file of the other half's kernel", err)
	}
	if f.denied.Store(f.core.Version(halfcore.FileRevoked)); m.holder != f.holder.Load() {
		f.denied.Store(0) // another process has just begun
	}
	return send
}

// keep verifies a file of the other half and stores it.
func (f *windowFiles) keep(got halfcore.HeldFile) error {
	c := f.w.common
	switch got.ID {
	case halfcore.FileRevoked:
		l, err := pki.OpenDenyList(got.Data, c.Verifier, c.Config.Cluster)
		if err == nil && l.GetVersion() != got.Version {
			err = fmt.Errorf("list of revoked certificates: version %d: want %d, as the other half states", l.GetVersion(), got.Version)
		}
		if err == nil {
			c.Trust.TakeList(l)
		}
		return err
	case halfcore.FilePeers:
		if _, err := peers.Decode(got.Data); err != nil {
			return err
		}
	default:
		if _, err := servicenet.Open(got.Data, c.Verifier); err != nil {
			return err
		}
	}
	for i := range f.files {
		if file := &f.files[i]; file.ID == got.ID {
			return durable.Replace(file.Path, got.Data)
		}
	}
	return nil
}

// Denied returns the version of the list of revoked certificates that this node has in force, given that of this half. With
// a window it is the older one of both halves, and the other half's counts when it is on disk there.
func (w *Window) Denied(own uint64) uint64 {
	if w == nil {
		return own
	}
	return min(own, w.files.denied.Load())
}
