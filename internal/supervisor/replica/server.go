package replica

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Verifier opens and checks messages that another replica received. It returns nil if a message is no evidence.
type Verifier interface {
	Forwarded(req *lofamov1.ForwardRequest) *engine.Input
	// Taken says that the leader has accepted the input.
	Taken(in *engine.Input)
}

// Server is the leader's end of the followers' streams.
type Server struct {
	lofamov1.UnimplementedReplicaServer

	Engine interface {
		Leading() bool
		Submit(in engine.Input) bool
		Lost()
	}
	Verifier Verifier
	Names    interface{ Known(fault.NodeID) bool }
	// Own reports whether the caller is one of our own replicas; nil: all are. Another region's supervisor may only
	// vouch for messages of its own nodes under a MAC.
	Own func(ctx context.Context) bool
	// Foreign converts verdicts of another region's supervisor on its border nodes into one verdict for each node. It
	// leaves out verdicts on other nodes. nil: there are no other regions.
	Foreign func(ctx context.Context, v *lofamov1.BorderVerdicts) []awareness.ForeignVerdict
	// Window is the maximum age of a forwarded digest that shows that the follower reaches the node.
	Window  time.Duration
	Metrics *metrics.Metrics

	mu        sync.Mutex
	followers map[*session]bool // our own replicas that forward to us
}

// Challenge makes all followers challenge a node, each from its own addresses, because the leader is perhaps unable to reach it. A
// follower also sends the challenge through those neighbours in c.Via whose digests it forwarded within Window. Challenge does not block.
func (s *Server) Challenge(c awareness.Challenge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := time.Now().Add(-s.Window)
	for back := range s.followers {
		back.put(&lofamov1.ForwardResponse{Challenge: &lofamov1.Challenge{Nonce: c.Nonce[:], Node: string(c.Node), Half: lofamov1.Half(c.Half),
			Term: c.Term, IssuedNs: c.Issued}, Via: back.reach(c.Via, since)})
	}
}

// attend records a follower's stream. The returned function records its end.
func (s *Server) attend(back *session) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.followers == nil {
		s.followers = make(map[*session]bool)
	}
	s.followers[back] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followers, back)
	}
}

var errNotLeading = status.Error(codes.FailedPrecondition, "this replica does not lead: ask another for the leader")

// Forward implements lofamov1.ReplicaServer.
func (s *Server) Forward(stream grpc.BidiStreamingServer[lofamov1.ForwardRequest, lofamov1.ForwardResponse]) error {
	if !s.Engine.Leading() {
		return errNotLeading
	}
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	own := s.Own == nil || s.Own(stream.Context())
	ctx, cancel := context.WithCancel(stream.Context())
	back := &session{out: make(chan *lofamov1.ForwardResponse, ackQueue), metrics: s.Metrics}
	if own {
		defer s.attend(back)()
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		back.run(ctx, stream)
	}()
	defer func() {
		cancel()
		<-sent
	}()
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !own && !s.theirs(req) {
			return status.Errorf(codes.PermissionDenied, "a supervisor of another region cannot vouch for %q", req.GetName())
		}
		if req.GetLost() && own {
			s.Engine.Lost()
		}
		if v := req.GetVerdicts(); v != nil {
			if s.Foreign != nil && !own {
				s.Engine.Submit(engine.Input{Foreign: s.Foreign(stream.Context(), v), Arrived: time.Now()})
			}
			continue
		}
		if list := req.GetRestated(); len(list) > 0 {
			if err := s.restated(back, list); err != nil {
				return err
			}
			continue
		}
		if path := req.GetPath(); path != uint32(fault.PathDirect) && path != uint32(fault.PathGossip) {
			return status.Errorf(codes.InvalidArgument, "path: given %d: want %d or %d", req.GetPath(), fault.PathDirect, fault.PathGossip)
		}
		if !s.Engine.Leading() {
			return errNotLeading
		}
		s.take(back, req)
	}
}

// take processes evidence that a follower forwards.
func (s *Server) take(from *session, req *lofamov1.ForwardRequest) {
	in := s.Verifier.Forwarded(req)
	if in == nil {
		return
	}
	in.Answerer, in.Arrived, in.Held = from, time.Now(), time.Duration(min(req.GetHeldNs(), uint64(maxHeld)))
	if s.Engine.Submit(*in) {
		s.Verifier.Taken(in)
	}
	if in.Reports.Digests() && in.Reports.Path == fault.PathDirect {
		from.heard(in.Reports.List[0].ID.Origin, in.Arrived)
	}
}

// theirs reports whether another region's supervisor may send this: any signed message, or a vouched one (see
// vouched in package ingest) that concerns none of our nodes.
func (s *Server) theirs(req *lofamov1.ForwardRequest) bool {
	node, _, _ := strings.Cut(req.GetName(), "/")
	return len(req.GetRestated()) == 0 && (node == "" || !s.Names.Known(fault.NodeID(node)))
}

// restated processes unchanged digests.
func (s *Server) restated(from *session, list []*lofamov1.RestatedDigest) error {
	in, err := decodeRestated(list, time.Now(), s.Names.Known)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if !s.Engine.Leading() {
		return errNotLeading
	}
	if len(in) > 0 {
		now := time.Now()
		s.Engine.Submit(engine.Input{Restated: in, Requester: from, Arrived: now})
		for i := range in {
			if in[i].Path == fault.PathDirect {
				from.heard(in[i].ID.Origin, now)
			}
		}
	}
	return nil
}

// session passes acks to one follower.
type session struct {
	out     chan *lofamov1.ForwardResponse
	metrics *metrics.Metrics

	mu      sync.Mutex
	digests map[fault.NodeID]time.Time // when the follower last forwarded a digest that came directly from the node's host half
}

// heard notes a digest that came directly from a half.
func (s *session) heard(by fault.Origin, now time.Time) {
	if by.Half != fault.HalfHost {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.digests == nil {
		s.digests = make(map[fault.NodeID]time.Time)
	}
	s.digests[by.Node] = now
}

// reach returns those of the nodes whose last digest the follower forwarded at since or later.
func (s *session) reach(nodes []fault.NodeID, since time.Time) (reached []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range nodes {
		if at, ok := s.digests[id]; ok && !at.Before(since) {
			reached = append(reached, string(id))
		}
	}
	return reached
}

// Answer implements engine.Answerer. After the stream's end it only fills the queue.
func (s *session) Answer(to engine.To, ack *lofamov1.Ack) {
	s.put(&lofamov1.ForwardResponse{Ack: ack, To: to.Addr, Socket: uint32(to.Socket), Relayed: to.Relayed})
}

func (s *session) put(r *lofamov1.ForwardResponse) {
	select {
	case s.out <- r:
	default:
		s.metrics.Dropped.WithLabelValues("send").Inc()
	}
}

// RequestFull implements engine.FullDigestRequester.
func (s *session) RequestFull(origins []fault.Origin) {
	resp := &lofamov1.ForwardResponse{Whole: make([]*lofamov1.HalfName, len(origins))}
	for i, o := range origins {
		resp.Whole[i] = &lofamov1.HalfName{Node: string(o.Node), Half: lofamov1.Half(o.Half)}
	}
	s.put(resp)
}

func (s *session) run(ctx context.Context, stream grpc.BidiStreamingServer[lofamov1.ForwardRequest, lofamov1.ForwardResponse]) {
	for {
		select {
		case <-ctx.Done():
			return
		case resp := <-s.out:
			if stream.Send(resp) != nil {
				return
			}
		}
	}
}
