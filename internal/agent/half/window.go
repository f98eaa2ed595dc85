package half

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
)

// Window is this half's end of the window to the other half's kernel. It stands in for the remote half on this kernel: it
// holds the remote half's lock on the local register file, stores the words that arrive, and forwards mailbox messages. The
// local half therefore works as if both halves shared one kernel.
//
// A link of pkg/torus/udplink carries the window. Its frames have sessions with keys of the halves' certificates. A frame
// that is damaged, forged, repeated, or of an old session is counted and dropped.
type Window struct {
	common *Common
	page   *Page        // of the other half, on this half's register file
	box    *mailbox.Box // the other half's place in the mailbox
	link   *udplink.Link
	dir    grid.Direction
	boot   watchdog.BootID
	life   uint64

	bad [torus.BadInterface + 1]atomic.Uint64 // frames, by torus.BadKind

	files *windowFiles

	mu         sync.Mutex // guards the rest; a caller may hold the half's mutex, never the reverse
	core       *watchdog.Window
	keys       torus.Keyring
	claim      *torus.Session // made beside the current one, and not used yet; nil: none
	claimAt    time.Time      // the last sign of its maker
	seq        uint64
	countersAt time.Time // when the next statement has the counters too
	epoch      fault.Epoch
	mail       halfcore.MailClock // for messages of the other half; new for each process there
	words      []watchdog.WindowWord
	payload    []byte
	packet     []byte
	claiming   Condition // this process is a second claimant, or the other end claims to be this half
	undialled  Condition // no host half has begun a session
	wrong      Condition // datagrams that cannot be understood
	second     Condition // a second process claims the other half's side
	secondAt   time.Time // last claim
	dropped    frameCounts
	droppedAt  time.Time // of the last line about dropped frames
	opened     time.Time // this end
	lost       uint64    // messages of the mailbox that were too long for the window, or found no session
}

// OpenWindow opens this half's end of the window; nil: the configuration has none. The caller must hold the half's lock on the
// register file.
func (c *Common) OpenWindow(own *Page, cs *Closers) (_ *Window, err error) {
	if c.Config.Window.Zero() {
		return nil, nil //nolint:nilnil // a node with one kernel has none
	}
	other := c.Half.Other()
	w := &Window{common: c, dir: grid.XPlus, opened: time.Now()}
	if c.Half == fault.HalfDNP {
		w.dir = grid.XMinus
	}
	if w.boot, err = storage.BootID(); err != nil {
		return nil, fmt.Errorf("window: %w", err)
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	w.life = max(1, binary.BigEndian.Uint64(random[:]))
	w.core = watchdog.NewWindow(watchdog.WindowConfig{TRead: c.Periods.TRead, Misses: c.Periods.ReadMisses, Life: w.life}, w.opened)
	if w.page, err = OpenPage(c.StatePath(RegisterFile), other, c.Log); err != nil {
		return nil, fmt.Errorf("window: the %s half has another kernel, but its place here is taken: %w", other, err)
	}
	cs.Add(func() error { return w.page.File.Close() })
	if w.box, err = mailbox.Open(c.Config.StateDir, other); err != nil {
		return nil, fmt.Errorf("window: %w", err)
	}
	cs.Add(w.box.Close)
	if w.link, err = w.listen(c.Config.Window); err != nil {
		return nil, fmt.Errorf("window: %w", err)
	}
	cs.Add(w.link.Close)
	own.Window, w.files = w, newWindowFiles(w)
	return w, nil
}

// listen opens the sockets. The host half dials. Certificates name the node and the halves, so both ends use coordinate
// 0,0,0: the node may get another place while the window is open.
func (w *Window) listen(cfg config.WindowConfig) (*udplink.Link, error) {
	local, err := netip.ParseAddrPort(cfg.Listen)
	if err != nil {
		return nil, err
	}
	peer, err := netip.ParseAddrPort(cfg.Peer)
	if err != nil {
		return nil, err
	}
	c := w.common
	tls, err := pki.LinkTLS(c.Signer, c.Config.TLS.CA, c.Trust.Registry)
	if err != nil {
		return nil, err
	}
	return udplink.Listen(udplink.Config{
		Dir: w.dir, Local: local, Peer: peer, Interface: cfg.Interface, Dialer: c.Half == fault.HalfHost, MTU: torus.MaxFrame,
		TLS: tls, VerifyPeer: pki.VerifyPeerIdentity(pki.NodeIdentity(c.Config.Cluster, c.Config.Node, c.Half.Other())),
		Logger: c.Log.With("carries", "window"),
	})
}

// Run carries words and messages until ctx ends. A nil Window does nothing.
func (w *Window) Run(ctx context.Context, g *errgroup.Group) {
	if w == nil {
		return
	}
	g.Go(func() error { return w.link.Run(ctx, w) })
	g.Go(func() error {
		return w.box.Run(ctx, func(m mailbox.Message) {
			if m.Type != mailbox.Files { // those are the window's own
				w.post(m)
			}
		})
	})
	g.Go(func() error { w.files.run(ctx); return nil })
	if w.common.Half == fault.HalfDNP {
		g.Go(func() error { w.knock(ctx); return nil })
	}
}

// Apart returns the half that has another kernel; 0 for a nil Window.
func (w *Window) Apart() fault.Half {
	if w == nil {
		return 0
	}
	return w.common.Half.Other()
}

// Wrote sends this half's words after a write of its watchdog word. Nothing else sends them: each statement is a sign of
// life.
func (w *Window) Wrote(now time.Time, own *Page) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.page.Maintain(now)
	w.keys.Expire(now)
	w.epoch = own.epoch
	w.claiming.Set(w.common.Log, "claim the window", w.denied(now))
	if w.second.On && now.Sub(w.secondAt) > claimOver { // the holder's statements come between the claimant's
		w.second.Set(w.common.Log, "accept statements through the window", nil)
	}
	w.undialled.Set(w.common.Log, "serve the window", w.alone(now))
	w.noteDropped(now)
	if w.core.Lost(now) && w.common.Half == fault.HalfHost {
		w.link.Redial()
	}
	if w.core.Asks(now) {
		w.send(torus.TypeAsk, nil)
		if !w.core.Hears(now) {
			return // the kernel's refusal must quote the question, not a statement that is too long to check
		}
	}
	counters := !now.Before(w.countersAt)
	if counters {
		w.countersAt = now.Add(CheckEvery)
	}
	w.words = own.File.AppendWords(w.words[:0], w.common.Half, counters)
	var err error
	if w.payload, err = watchdog.AppendStatement(w.payload[:0], w.life, w.boot, w.words); err == nil {
		w.send(torus.TypeMessage, w.payload)
		if w.claim != nil && w.common.Half == fault.HalfHost && now.Sub(w.claimAt) <= claimOver {
			// This statement makes the holder switch to the new session. A second claimant hears it too, and so does not call this
			// half dead.
			w.sendBy(w.claim.ID(), w.claim, torus.TypeMessage, w.payload)
		}
	}
}

// post sends a message from this half or its daemon to the other half.
func (w *Window) post(m mailbox.Message) {
	if m.Type == mailbox.Recovery {
		m.Payload = editRecord(m.Payload, func(r *halfcore.RecoveryRecord) { r.Sent = Monotonic() })
	}
	b, err := m.Append(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.payload, err = watchdog.AppendMail(w.payload[:0], w.life, b)
	}
	if _, live := w.keys.Current(); err != nil || !live {
		w.lost++
		return
	}
	w.send(torus.TypeMessage, w.payload)
}

// send sends one frame, if there is a session. It runs under the mutex.
func (w *Window) send(t torus.FrameType, payload []byte) {
	if session, live := w.keys.Current(); live {
		w.sendBy(session, &w.keys, t, payload)
	}
}

// sendBy sends one frame of a session. It runs under the mutex.
func (w *Window) sendBy(session uint32, keys torus.Sealer, t torus.FrameType, payload []byte) {
	w.seq++
	f := torus.Frame{Type: t, Direction: w.dir, Session: session, Epoch: w.epoch, Seq: w.seq, Payload: payload}
	var err error
	if w.packet, err = f.Append(w.packet[:0], keys); err == nil {
		_ = w.link.Send(w.packet) // counted by the link; a lost statement is a missed write
	}
}

// OnPacket implements udplink.Handler.
func (w *Window) OnPacket(_ grid.Direction, b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	f, err := torus.Decode(b, torus.MaxFrame, &w.keys)
	if errors.Is(err, torus.ErrSession) && w.claim != nil {
		if f, err = torus.Decode(b, torus.MaxFrame, w.claim); err == nil && !w.admit(now, f) {
			w.claimAt = now
			return
		}
	}
	if err != nil {
		w.bad[torus.KindOf(err)].Add(1)
		return
	}
	w.keys.Confirm(f.Session)
	out, err := w.core.Hear(now, windowFrame(f))
	w.noteWrong(err, len(f.Payload) > 0)
	if out.Answer {
		w.send(torus.TypeHeartbeat, nil)
	}
	if out.Deny {
		w.send(torus.TypeMessage, watchdog.AppendDenial(nil, w.life))
	}
	if out.Holder {
		w.mail = halfcore.MailClock{}
		w.files.newHolder()
	}
	if out.Beat {
		w.page.note(w.page.File.Revalidate())
	}
	if len(out.Words) > 0 {
		if e := f.Epoch; e != w.page.epoch || w.page.File.Epoch(w.page.half) != e {
			w.page.SetEpoch(e)
		}
		w.page.note(w.page.File.StoreWords(out.Words))
	}
	if out.Mail != nil {
		w.deliver(out.Mail)
	}
}

// editRecord returns an encoded recovery record as edit changes it. It returns b itself if that is invalid; the half then refuses it.
func editRecord(b []byte, edit func(*halfcore.RecoveryRecord)) []byte {
	r, err := halfcore.DecodeRecovery(b)
	if err != nil {
		return b
	}
	edit(&r)
	if edited, err := r.Encode(); err == nil {
		return edited
	}
	return b
}

func windowFrame(f torus.Frame) watchdog.WindowFrame {
	return watchdog.WindowFrame{
		Session: f.Session, Seq: f.Seq, Epoch: uint64(f.Epoch), Ask: f.Type == torus.TypeAsk, Payload: f.Payload,
	}
}

// admit decides about a frame of the claimed session, and goes over to that session if its maker may hold the other half's side. It
// runs under the mutex.
func (w *Window) admit(now time.Time, f torus.Frame) bool {
	deny, err := w.core.Admit(now, windowFrame(f))
	if err == nil {
		w.keys.Add(now, w.claim)
		w.claim = nil
		return true
	}
	if deny {
		w.noteWrong(err, true)
		w.sendBy(w.claim.ID(), w.claim, torus.TypeMessage, watchdog.AppendDenial(nil, w.life))
	}
	return false
}

// noteWrong logs datagrams that cannot be used, once until one can.
func (w *Window) noteWrong(err error, datagram bool) {
	switch {
	case errors.Is(err, watchdog.ErrWindowReplay):
	case errors.Is(err, watchdog.ErrWindowLeased):
		w.secondAt = time.Now()
		w.second.Set(w.common.Log, "accept statements through the window", err)
	case datagram:
		w.wrong.Set(w.common.Log, "decode window datagrams", err)
	}
}

// deliver leaves a message for this half, as its other half would.
func (w *Window) deliver(b []byte) {
	m, err := mailbox.Decode(b)
	switch {
	case err != nil || m.Type.Later():
		w.bad[torus.BadMalformed].Add(1)
	case m.Type == mailbox.Files:
		w.files.take(m.Payload)
	case m.Type == mailbox.Doorbell:
		_ = w.box.Ring()
	default:
		if m.Type == mailbox.Envelope {
			stampHere(m.Payload, &w.mail, Monotonic())
		}
		if m.Type == mailbox.Recovery {
			m.Payload = editRecord(m.Payload, func(r *halfcore.RecoveryRecord) { r.Arrive(&w.mail, Monotonic()) })
		}
		_ = w.box.Send(m) // counted there; a full mailbox drops the newest message, as beside the other half
	}
}

// OnSession implements udplink.Handler. A session that comes beside another one waits for a frame which shows that it may be used: it
// may be a second process' session. The end that dialled uses its session at once unless the holder's lease lasts.
func (w *Window) OnSession(_ grid.Direction, s *torus.Session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if _, live := w.keys.Current(); live && (w.common.Half == fault.HalfDNP || w.core.Leased(now)) {
		w.claim, w.claimAt = s, now
		return
	}
	w.claim = nil
	w.keys.Add(now, s)
}

// OnRefused implements udplink.Handler.
func (w *Window) OnRefused(grid.Direction) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.core.Refused(time.Now())
}

// Mount serves the fault injection of the window: POST /window {"cut":true} drops all frames and handshakes at this end, both
// ways.
func (w *Window) Mount(mux *http.ServeMux) {
	if w == nil {
		return
	}
	mux.Handle("/window", Post(func(in struct {
		Cut bool `json:"cut"`
	},
	) (any, error) {
		w.common.Log.Warn("fault injection", "window_cut", in.Cut)
		w.link.SetFaults(udplink.LinkFaults{BlockIn: in.Cut, BlockOut: in.Cut})
		return nil, nil
	}))
}

// State returns what this half knows about the way to its other half. A nil Window is one kernel.
func (w *Window) State(now time.Time) (s halfcore.Window) {
	if w == nil {
		return s
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.State, s.Silence = w.core.State(now)
	switch _, boot := w.core.Peer(); boot {
	case watchdog.BootID{}:
	case w.boot:
		s.Platform = fault.PlatformSharedKernel
	default:
		s.Platform = fault.PlatformDPU
	}
	return s
}

// Status returns what people on the node see of the window; nil without one.
func (w *Window) Status(now time.Time) *local.WindowStatus {
	if w == nil {
		return nil
	}
	is := w.State(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	s, l, d := w.core.Stats(), w.link.Stats(), w.frameCounts()
	return &local.WindowStatus{
		Listen: w.link.LocalAddr().String(), Peer: w.link.PeerAddr().String(), State: is.State.String(),
		Silence:  is.Silence.Round(time.Millisecond).String(),
		Sessions: l.Handshakes, FailedSessions: l.HandshakeFailures, Statements: s.Statements, Messages: s.Mail, MessagesLost: w.lost,
		Repeated: d.repeated, Forged: d.forged, OldSession: d.oldSession, Damaged: d.damaged, Malformed: d.malformed,
		SecondClaimant: s.Leased, Refusals: s.Refusals,
	}
}

const unknownPlatform = "unknown"

// PlatformNames lists the results that PlatformName may have.
func (w *Window) PlatformNames() []string {
	if w == nil {
		return []string{config.PlatformSharedKernel}
	}
	return []string{config.PlatformSharedKernel, config.PlatformDPU, unknownPlatform}
}

// PlatformName returns the platform of the halves as the configuration names it, or "unknown" before the first statement of
// the other kernel.
func (w *Window) PlatformName() string {
	switch w.State(time.Now()).Platform {
	case fault.PlatformDPU:
		return config.PlatformDPU
	case 0:
		if w != nil {
			return unknownPlatform
		}
	default:
	}
	return config.PlatformSharedKernel
}
