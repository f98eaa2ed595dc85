package bundle

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
)

// This file has the shell around a half's bulk.Sender. The server owns the machine on a goroutine of its own. It
// gathers objects into files, computes their checksums, reads their chunks and hands them to the half's ways to the
// supervisors. It never takes the half's mutex and never blocks the half: it drops messages above its rate, and the
// receiver asks again. It trusts its caller that a supervisor signed the message.
//
// # Repeated requests
//
// A BulkRequest does not say when it was made, so an attacker who recorded it can send it again. The server remembers
// the last Remember transfers. A repeated request for an ended one does not make the half gather again
// within Again of the last such. For older transfers only the sender's own bound applies: a few objects at a time, each
// of which keeps its slot until it has been idle.

// Ways are the half's routes to the supervisors. They do not block and may lose packets. The caller owns the packet
// again on return.
type Ways interface {
	Announce(to bulk.Route, supervisor string, m *lofamov1.BulkAnnounce)
	Chunk(to bulk.Route, supervisor string, packet []byte)
}

// Object is an object that supervisors can request.
type Object struct {
	// Name returns the file name of an object gathered now.
	Name func(now time.Time) string
	// Gather writes the object, at most maxSize bytes, and ends with its context.
	Gather func(ctx context.Context, maxSize uint64, w io.Writer) error
}

// ServerConfig configures a server.
type ServerConfig struct {
	Origin   fault.Origin
	Dir      string // for the files, which only their owner may read
	Objects  map[string]Object
	Sender   bulk.SenderConfig // except Objects
	Ways     Ways
	Within   time.Duration // maximum time to gather one object
	Remember int           // number of ended transfers whose names are remembered
	Again    time.Duration // least time between two gatherings for repeated requests
	Logger   *slog.Logger
}

// DefaultServerConfig returns the bounds.
func DefaultServerConfig() ServerConfig {
	return ServerConfig{Sender: bulk.DefaultSenderConfig(), Within: 20 * time.Second, Remember: 64, Again: 10 * time.Second}
}

// queueSize bounds the waiting messages. A supervisor has a few pulls in progress.
const queueSize = 64

// Server serves the transfers of one half. Deliver may be called from any goroutine, Run from one.
type Server struct {
	cfg    ServerConfig
	sender *bulk.Sender
	in     chan bulk.SenderEvent // from the half
	done   chan bulk.SenderEvent // from gatherings

	files    map[bulk.Transfer]*gathered
	known    []bulk.Transfer // that have begun, oldest first
	repeated time.Time       // when a repeated request last caused a gathering
	packet   []byte
	chunk    [bulk.ChunkSize]byte
	running  sync.WaitGroup // gatherings
}

// gathered is an object, complete or being gathered. Until ready is closed the gathering goroutine owns it.
type gathered struct {
	stop  context.CancelFunc
	ready chan struct{} // closed when the gathering is over
	f     *os.File      // nil when it failed
}

// NewServer creates a server and removes the files that an earlier one left, if possible.
func NewServer(cfg ServerConfig) (*Server, error) {
	cfg.Sender.Objects = slices.Sorted(maps.Keys(cfg.Objects))
	s, err := bulk.NewSender(cfg.Origin, cfg.Sender)
	if err != nil {
		return nil, err
	}
	srv := &Server{
		cfg: cfg, sender: s, in: make(chan bulk.SenderEvent, queueSize),
		// Each gathering sends two events, and there are at most as many gatherings as transfers.
		done: make(chan bulk.SenderEvent, 4*cfg.Sender.Transfers), files: map[bulk.Transfer]*gathered{},
		packet: make([]byte, 0, bulk.MaxPacket),
	}
	if err := srv.sweep(); err != nil {
		cfg.Logger.Warn("files of an earlier half could not be removed", "err", err)
	}
	return srv, nil
}

func (s *Server) pattern(middle string) string {
	return filepath.Join(s.cfg.Dir, s.cfg.Origin.Half.String()+".bulk-"+middle)
}

func (s *Server) sweep() error {
	left, err := filepath.Glob(s.pattern("*"))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("remove left objects: %w", err)
	}
	return nil
}

// Takes reports whether a verified message is for Deliver, and for which half of which node.
func Takes(m *lofamov1.Message) (to fault.Origin, ok bool) {
	var addressed interface {
		GetNode() string
		GetHalf() lofamov1.Half
	}
	switch b := m.GetBody().(type) {
	case *lofamov1.Message_BulkRequest:
		addressed = b.BulkRequest
	case *lofamov1.Message_BulkPull:
		addressed = b.BulkPull
	default:
		return fault.Origin{}, false
	}
	return servicenet.OriginOf(addressed), true
}

// Deliver accepts a message for which Takes holds and that a supervisor has signed. It does not block.
func (s *Server) Deliver(o servicenet.Opened) {
	var ev bulk.SenderEvent = bulk.Pulled{Message: o.Msg.GetBulkPull(), Supervisor: o.Name}
	if r := o.Msg.GetBulkRequest(); r != nil {
		ev = bulk.Requested{Message: r, Supervisor: o.Name} // the key is set later, in admit
	}
	select {
	case s.in <- ev:
	default: // the receiver asks again
	}
}

// Run serves until the context ends, and then removes all files.
func (s *Server) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer s.releaseAll()
	for {
		var ev bulk.SenderEvent
		select {
		case <-ctx.Done():
			return nil
		case ev = <-s.in:
		case ev = <-s.done:
		case <-timer.C:
			ev = bulk.Tick{}
		}
		now := time.Now()
		if ev = s.admit(now, ev); ev == nil {
			continue
		}
		wake := s.do(ctx, now, s.sender.Step(now, ev))
		if wake.IsZero() {
			timer.Stop()
			continue
		}
		timer.Reset(max(time.Until(wake), minRest))
	}
}

// minRest keeps a machine with many due chunks from spinning: the half has one thread.
const minRest = time.Millisecond

// admit sets the key of a request, and delays repeated requests.
func (s *Server) admit(now time.Time, ev bulk.SenderEvent) bulk.SenderEvent {
	r, ok := ev.(bulk.Requested)
	if !ok {
		return ev
	}
	id, err := bulk.ParseTransfer(r.Message.GetTransfer())
	if err != nil {
		return nil
	}
	if s.files[id] == nil && slices.Contains(s.known, id) {
		if now.Sub(s.repeated) < s.cfg.Again {
			return nil
		}
		s.repeated = now
	}
	if r.Private, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
		s.cfg.Logger.Error("key of a transfer", "err", err)
		return nil
	}
	return r
}

// do carries out an output.
func (s *Server) do(ctx context.Context, now time.Time, out bulk.SenderOutput) (wake time.Time) {
	for _, id := range out.Release {
		s.release(id)
	}
	for _, g := range out.Gather {
		s.gather(ctx, now, g)
	}
	for _, a := range out.Announce {
		s.cfg.Ways.Announce(a.To, a.Supervisor, a.Message)
	}
	for _, c := range out.Chunks {
		s.sendChunk(c)
	}
	return out.Wake
}

func (s *Server) sendChunk(c bulk.Chunk) {
	f := s.files[c.Transfer]
	if f == nil {
		return
	}
	data := s.chunk[:c.Length]
	_, err := f.f.ReadAt(data, c.Offset) // the file exists: chunks follow Ready
	if err == nil {
		s.packet, err = s.sender.Seal(s.packet[:0], c, data)
	}
	if err != nil {
		s.cfg.Logger.Warn("chunk not sent", "transfer", c.Transfer.String(), "err", err)
		return
	}
	s.cfg.Ways.Chunk(c.To, c.Supervisor, s.packet)
}

// gather gathers an object and computes its checksum; the result arrives by done.
func (s *Server) gather(ctx context.Context, now time.Time, g bulk.Gather) {
	gctx, stop := context.WithTimeout(ctx, s.cfg.Within)
	f := &gathered{stop: stop, ready: make(chan struct{})}
	s.files[g.Transfer] = f
	s.remember(g.Transfer)
	o := s.cfg.Objects[g.Object]
	name := o.Name(now)
	s.cfg.Logger.Info("gathering", "object", g.Object, "name", name, "transfer", g.Transfer.String())
	s.running.Go(func() {
		defer close(f.ready)
		size, err := f.fill(gctx, s.pattern(g.Transfer.String()), func(w io.Writer) error { return o.Gather(gctx, g.MaxSize, w) })
		if err != nil {
			s.tell(ctx, bulk.Failed{Transfer: g.Transfer, Why: err.Error()})
			return
		}
		s.tell(ctx, bulk.Ready{Transfer: g.Transfer, Name: name, Size: size})
		sum, err := f.sum(gctx, g.Checksum)
		if err != nil {
			s.tell(ctx, bulk.Failed{Transfer: g.Transfer, Why: err.Error()})
			return
		}
		s.tell(ctx, bulk.Summed{Transfer: g.Transfer, Checksum: sum})
	})
}

// tell sends an event to Run, unless Run has ended.
func (s *Server) tell(ctx context.Context, ev bulk.SenderEvent) {
	select {
	case s.done <- ev:
	case <-ctx.Done():
	}
}

// fill writes the file. Once complete the file has no name any more, so no other process can change it, and it vanishes
// with this process.
func (f *gathered) fill(ctx context.Context, path string, write func(io.Writer) error) (size uint64, err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, fmt.Errorf("file of the object: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	if err := os.Remove(path); err != nil {
		return 0, fmt.Errorf("file of the object: %w", err)
	}
	if err := write(file); err != nil {
		return 0, err
	}
	n, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("file of the object: %w", err)
	}
	f.f = file
	return uint64(n), ctx.Err()
}

// sumPiece is the number of bytes summed before other goroutines may run: some 20 µs of work.
const sumPiece = 256 << 10

func (f *gathered) sum(ctx context.Context, a lofamov1.Checksum) (uint64, error) {
	d := servicenet.NewChecksummer(a)
	buf := make([]byte, sumPiece)
	for at := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := f.f.ReadAt(buf, at)
		_, _ = d.Write(buf[:n]) // never fails
		at += int64(n)
		if errors.Is(err, io.EOF) {
			return d.Sum64(), nil
		}
		if err != nil {
			return 0, fmt.Errorf("sum the object: %w", err)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// release stops a gathering and drops its file.
func (s *Server) release(id bulk.Transfer) {
	f := s.files[id]
	if f == nil {
		return
	}
	delete(s.files, id)
	f.stop()
	s.running.Go(func() { // ends with the gathering, whose context has just ended
		<-f.ready
		if f.f != nil {
			_ = f.f.Close() // only read since
		}
	})
}

// releaseAll ends all gatherings and waits for them.
func (s *Server) releaseAll() {
	for id := range s.files {
		s.release(id)
	}
	s.running.Wait()
}

// remember stores the name of a transfer that has begun, replacing the oldest.
func (s *Server) remember(id bulk.Transfer) {
	if slices.Contains(s.known, id) {
		return
	}
	s.known = append(s.known, id)
	if n := len(s.known) - s.cfg.Remember; n > 0 {
		s.known = slices.Delete(s.known, 0, n)
	}
}
