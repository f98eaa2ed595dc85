// Package mailbox carries messages between the two halves of a node: one Unix datagram socket a half, host.mbox and
// dnp.mbox, beside the register file.
//
// It carries messages that do not fit a register, and the doorbell that tells the other half to look at the registers
// now and not at its next period. It is no watchdog: the halves conclude nothing from silence here, and everything
// that matters is also in a register or in a log that retries.
//
// Nothing here blocks on the other half. The queue is the kernel's, bounded by net.unix.max_dgram_qlen messages
// (often 512, 10 on old kernels) and by the sender's socket buffer. When it is full, the newest message drops, of any
// type, and is counted. A dropped doorbell does no harm, because earlier ones are still queued, and the origin of an
// envelope retransmits it.
package mailbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
)

var (
	// ErrDropped is wrapped when the other half's queue is full.
	ErrDropped = errors.New("mailbox full, message dropped")
	// ErrAbsent is wrapped when no process listens at the other half's socket.
	ErrAbsent = errors.New("other half has no mailbox")
	// ErrInUse is wrapped by Open when a process listens at this half's socket already.
	ErrInUse = errors.New("mailbox in use")
	// ErrClosed is wrapped after Close.
	ErrClosed = errors.New("mailbox closed")
)

// maxSocketPath is the longest path that fits a socket address (struct sockaddr_un, with its zero).
const maxSocketPath = 107

// sendBuffer is the requested buffer size in bytes, for some 50 of the largest messages.
const sendBuffer = 512 << 10

// Stats counts messages since Open.
type Stats struct {
	Sent, Received uint64
	DroppedFull    uint64 // not sent: queue full
	DroppedAbsent  uint64 // not sent: no listener
	Bad            uint64 // received and refused: wrong CRC, no type, too long, or of another user
}

// Box is one half's end of the mailbox. Its methods may be called from several goroutines; Run only
// from one.
type Box struct {
	path string
	peer string
	conn *net.UnixConn
	raw  syscall.RawConn
	to   unix.SockaddrUnix
	dir  *os.File // kept open for socket paths through /proc; nil where the paths are short

	soon soon

	closeOnce sync.Once
	closeErr  error

	sent, received, full, absent, bad atomic.Uint64
}

// Open listens at the half's socket in dir. A socket that a dead process left there is removed: the
// caller must hold the half's lock on the register file (regfile.Open), so that no two processes do
// this at a time. A socket at which somebody still listens is refused with ErrInUse nevertheless.
func Open(dir string, half fault.Half) (*Box, error) {
	if !half.Valid() {
		return nil, fmt.Errorf("open mailbox in %s: half is %d: want host or dnp", dir, half)
	}
	b := &Box{path: socketPath(dir, half), peer: socketPath(dir, half.Other()), soon: soon{life: soonLife}}
	if err := b.open(dir, half); err != nil {
		if b.dir != nil {
			err = errors.Join(err, b.dir.Close())
		}
		return nil, fmt.Errorf("open mailbox %s: %w", b.path, err)
	}
	return b, nil
}

func socketPath(dir string, half fault.Half) string {
	return filepath.Join(dir, half.String()+".mbox")
}

func (b *Box) open(dir string, half fault.Half) error {
	own, peer := b.path, b.peer
	if max(len(own), len(peer)) > maxSocketPath {
		// The directory's descriptor makes any path short.
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		b.dir = d
		short := fmt.Sprintf("/proc/self/fd/%d", d.Fd())
		own, peer = socketPath(short, half), socketPath(short, half.Other())
	}
	if err := removeStale(own); err != nil {
		return err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// Before bind, the mode of the descriptor is the mode that the file will get: there is no
		// moment in which others could connect.
		var err error
		if cerr := c.Control(func(fd uintptr) {
			err = errors.Join(unix.Fchmod(int(fd), 0o600),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer))
		}); cerr != nil {
			return cerr
		}
		return err
	}}
	pc, err := lc.ListenPacket(context.Background(), "unixgram", own)
	if err != nil {
		return err
	}
	conn, ok := pc.(*net.UnixConn)
	if !ok {
		return errors.Join(fmt.Errorf("listening gave a %T", pc), pc.Close())
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	b.conn, b.raw, b.to = conn, raw, unix.SockaddrUnix{Name: peer}
	return nil
}

// removeStale removes a socket without a listener.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("there is a %s in the way: want a socket or nothing", info.Mode())
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err == nil {
		return errors.Join(ErrInUse, c.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("probe the socket that is there: %w", err)
	}
	return os.Remove(path)
}

// Send sends a message to the other half and never waits. The error wraps ErrDropped when the queue is full and
// ErrAbsent when no process listens; the message is then lost, and counted. The payload stays the caller's.
func (b *Box) Send(m Message) error {
	err := b.send(m)
	if errors.Is(err, ErrDropped) {
		b.full.Add(1)
	}
	return err
}

func (b *Box) send(m Message) error {
	buf, err := m.Append(make([]byte, 0, overhead+len(m.Payload)))
	if err != nil {
		return fmt.Errorf("send to mailbox %s: %w", b.peer, err)
	}
	var sendErr error
	to := b.to // a copy: Sendto writes to its argument, and there may be several senders
	if err := b.raw.Control(func(fd uintptr) {
		for {
			sendErr = unix.Sendto(int(fd), buf, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, &to)
			if !errors.Is(sendErr, unix.EINTR) {
				return
			}
		}
	}); err != nil {
		return fmt.Errorf("send to mailbox %s: %w: %w", b.peer, ErrClosed, err)
	}
	switch {
	case sendErr == nil:
		b.sent.Add(1)
		return nil
	case errors.Is(sendErr, unix.EAGAIN), errors.Is(sendErr, unix.ENOBUFS):
		sendErr = ErrDropped
	case errors.Is(sendErr, unix.ENOENT), errors.Is(sendErr, unix.ECONNREFUSED):
		b.absent.Add(1)
		sendErr = ErrAbsent
	}
	return fmt.Errorf("send to mailbox %s: %s: %w", b.peer, m.Type, sendErr)
}

// spareRoom bounds this half's messages in the other half's queue, in bytes as the kernel counts memory (some 2,300
// for a datagram of 1,200), for SendSpare to add another: about four chunks. The kernel may hold no more than 10
// datagrams there (net.unix.max_dgram_qlen).
const spareRoom = 9000

// SendSpare is Send for messages that must never take another message's place. It drops them while the other half is
// behind, so that doorbells and reports always find room. Such a drop is not counted.
func (b *Box) SendSpare(m Message) error { return b.sendWithin(m, spareRoom) }

// offerRoom is spareRoom for Offer: four of the smallest messages, each of which counts as some 770 bytes.
const offerRoom = 3000

// Offer is SendSpare for messages that their sender keeps until the mailbox takes them. There may be many small ones
// at a time. They leave the greater part of the queue free, because a full queue would count as a sickness of this
// half.
func (b *Box) Offer(m Message) error { return b.sendWithin(m, offerRoom) }

// sendWithin sends a message that may be lost, if less than room bytes lie in the other half's queue.
func (b *Box) sendWithin(m Message, room int) error {
	waiting, waitErr := 0, error(nil)
	if err := b.raw.Control(func(fd uintptr) { waiting, waitErr = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
		return fmt.Errorf("send to mailbox %s: %w: %w", b.peer, ErrClosed, err)
	}
	if waitErr == nil && waiting >= room {
		return fmt.Errorf("send to mailbox %s: %s: the other half is behind: %w", b.peer, m.Type, ErrDropped)
	}
	return b.send(m)
}

// Tell sends a message to a half from a process that is neither half: the recovery daemon. It never waits; see Send for its
// errors.
func Tell(dir string, half fault.Half, m Message) (err error) {
	path := socketPath(dir, half)
	fail := func(err error) error { return fmt.Errorf("tell mailbox %s: %s: %w", path, m.Type, err) }
	buf, err := m.Append(make([]byte, 0, overhead+len(m.Payload)))
	if err != nil {
		return fail(err)
	}
	to := unix.SockaddrUnix{Name: path}
	if len(path) > maxSocketPath {
		d, err := os.Open(dir)
		if err != nil {
			return fail(err)
		}
		defer func() { _ = d.Close() }()
		to.Name = socketPath(fmt.Sprintf("/proc/self/fd/%d", d.Fd()), half)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = unix.Close(fd) }()
	switch err := unix.Sendto(fd, buf, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, &to); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
		return fail(ErrDropped)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return fail(ErrAbsent)
	default:
		return fail(err)
	}
}

// Ring rings the other half's doorbell. A full queue is no error, and not counted: it holds a reason to look already.
func (b *Box) Ring() error {
	if err := b.send(Message{Type: Doorbell}); err != nil && !errors.Is(err, ErrDropped) {
		return err
	}
	return nil
}

// Run hands every message that arrives to handle, in order, until ctx is done or the box is closed;
// both are a nil error. The payload is handle's to keep. handle must not block: meanwhile the queue
// fills.
func (b *Box) Run(ctx context.Context, handle func(Message)) error {
	if err := b.conn.SetReadDeadline(time.Time{}); err != nil {
		return b.runEnd(ctx, err)
	}
	// A deadline in the past is how a blocked read of Go's poller is called off.
	stop := context.AfterFunc(ctx, func() { _ = b.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, overhead+MaxPayload+1) // one more byte, to detect messages that are too long
	ctl := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for {
		n, cn, _, _, err := b.conn.ReadMsgUnix(buf, ctl)
		if err != nil {
			return b.runEnd(ctx, err)
		}
		m, err := Decode(buf[:n])
		if err != nil || !trusted(ctl[:cn]) {
			b.bad.Add(1)
			continue
		}
		b.received.Add(1)
		m.Payload = append([]byte(nil), m.Payload...)
		handle(m)
	}
}

// trusted reports whether the kernel names this process's user, or root, as the sender's in the control data. The
// socket's mode keeps other users away already.
func trusted(control []byte) bool {
	ms, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(ms) != 1 {
		return false
	}
	sender, err := unix.ParseUnixCredentials(&ms[0])
	return err == nil && (sender.Uid == uint32(os.Geteuid()) || sender.Uid == 0)
}

// runEnd drops an error that the end of ctx or Close has caused.
func (b *Box) runEnd(ctx context.Context, err error) error {
	if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("receive from mailbox %s: %w", b.path, err)
	}
	return nil
}

// Stats returns the counters.
func (b *Box) Stats() Stats {
	return Stats{
		Sent: b.sent.Load(), Received: b.received.Load(),
		DroppedFull: b.full.Load(), DroppedAbsent: b.absent.Load(), Bad: b.bad.Load(),
	}
}

// Path returns the path of this half's socket.
func (b *Box) Path() string { return b.path }

// Close ends Run and removes the socket. Closing twice does nothing.
func (b *Box) Close() error {
	b.closeOnce.Do(func() {
		b.soon.close()
		err := b.conn.Close()
		if rerr := os.Remove(b.path); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		if b.dir != nil {
			err = errors.Join(err, b.dir.Close())
		}
		b.closeErr = err
	})
	return b.closeErr
}
