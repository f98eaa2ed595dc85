package local

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

const (
	maxListeners = 256             // watches of eurekas
	maxWaiting   = 64              // eurekas that a slow watcher has not read yet
	takenWithin  = 2 * time.Second // by the DNP half: it answers at once, or is not there
	postAgain    = 100 * time.Millisecond
)

// eurekas is a server's state of eurekas. Its locks are held for moments only.
type eurekas struct {
	mu        sync.Mutex
	limit     jobs.Limit
	window    jobs.Window
	number    uint64
	asked     map[uint64]chan jobs.Mail // by the number of the request
	listeners map[*listener]uint32      // and the user of each
	announced []string                  // steps of responses that the jobs here have received, the newest last
}

// listener is one watch.
type listener struct {
	job    string
	uid    uint32
	queue  []*lofamov1.Eureka
	missed uint64
	wake   chan struct{} // has room for one
}

func newEurekas() *eurekas {
	return &eurekas{
		limit: jobs.Limit{Rate: 10, Burst: 20}, asked: make(map[uint64]chan jobs.Mail), listeners: make(map[*listener]uint32),
	}
}

// WatchEureka implements the service.
func (s *Server) WatchEureka(req *lofamov1.WatchEurekaRequest, stream grpc.ServerStreamingServer[lofamov1.WatchEurekaResponse]) error {
	who, err := s.admit(stream.Context(), lofamov1.Local_WatchEureka_FullMethodName)
	if err != nil {
		return err
	}
	if err := jobs.CheckName("job", req.GetJob(), servicenet.MaxJob); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	l := &listener{job: req.GetJob(), uid: who.uid, wake: make(chan struct{}, 1)}
	if req.Uid != nil {
		l.uid = req.GetUid()
	}
	if !s.eurekas.listen(l, who.uid) {
		return status.Errorf(codes.ResourceExhausted,
			"uid %d watches eurekas too often: want at most %d on one node, and half of that of one user", who.uid, maxListeners)
	}
	defer s.eurekas.unlisten(l)
	if err := stream.Send(&lofamov1.WatchEurekaResponse{}); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-l.wake:
		}
		for _, r := range s.eurekas.take(l) {
			if err := stream.Send(r); err != nil {
				return err
			}
		}
	}
}

func (e *eurekas) listen(l *listener, by uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	mine := 0
	for _, uid := range e.listeners {
		if uid == by {
			mine++
		}
	}
	if !jobs.Room(maxListeners, len(e.listeners), by, mine) {
		return false
	}
	e.listeners[l] = by
	return true
}

func (e *eurekas) unlisten(l *listener) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.listeners, l)
}

func (e *eurekas) take(l *listener) []*lofamov1.WatchEurekaResponse {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]*lofamov1.WatchEurekaResponse, 0, len(l.queue))
	for _, q := range l.queue {
		out = append(out, &lofamov1.WatchEurekaResponse{Eureka: q, Missed: l.missed})
		l.missed = 0
	}
	l.queue = nil
	return out
}

// deliver gives a eureka to its watchers, once. It does not block.
func (e *eurekas) deliver(m *lofamov1.JobEureka) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.window.Take(fault.NodeID(m.GetNode()), fault.Epoch(m.GetEpoch()), m.GetNumber()) {
		return
	}
	said := &lofamov1.Eureka{
		Job: m.GetJob(), Topic: m.GetTopic(), Body: m.GetBody(), Node: m.GetNode(), Uid: m.GetUid(),
		Epoch: m.GetEpoch(), Number: m.GetNumber(), Priority: m.GetPriority(),
	}
	for l := range e.listeners {
		if l.job != m.GetJob() || m.GetUid() != l.uid && m.GetUid() != 0 {
			continue
		}
		l.add(said)
	}
}

// add queues a eureka for a listener, and drops the oldest when too many wait. The caller holds the mutex.
func (l *listener) add(said *lofamov1.Eureka) {
	if len(l.queue) >= maxWaiting {
		l.queue = slices.Delete(l.queue, 0, 1)
		l.missed++
	}
	l.queue = append(l.queue, said)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// RaiseEureka implements the service.
func (s *Server) RaiseEureka(ctx context.Context, req *lofamov1.RaiseEurekaRequest) (*lofamov1.RaiseEurekaResponse, error) {
	who, err := s.admit(ctx, lofamov1.Local_RaiseEureka_FullMethodName)
	if err != nil {
		return nil, err
	}
	if err := checkRaise(req); err != nil {
		return nil, err
	}
	node, epoch := s.half.Self()
	m := &lofamov1.JobEureka{
		Node: string(node), Epoch: uint64(epoch), Uid: who.uid,
		Job: req.GetJob(), Topic: req.GetTopic(), Body: req.GetBody(), Priority: req.GetPriority(),
	}
	var answer chan jobs.Mail
	if m.Number, answer, err = s.eurekas.begin(time.Now(), who.uid, s.half.SinceBoot()); err != nil {
		return nil, err
	}
	defer s.eurekas.finish(m.Number)
	envelope, err := s.half.Sign(m)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "body: given %d bytes, which with the names make too long a message: %v",
			len(req.GetBody()), err)
	}
	if n := len(envelope); n > jobs.MaxEnvelope {
		return nil, status.Errorf(codes.InvalidArgument, "body: given %d bytes: want at most %d under these names", len(req.GetBody()),
			len(req.GetBody())-(n-jobs.MaxEnvelope))
	}
	links, err := s.post(ctx, jobs.Mail{Kind: jobs.Raise, Request: m.Number, Priority: uint8(m.GetPriority()), Envelope: envelope}, answer)
	if err != nil {
		return nil, err
	}
	s.eurekas.deliver(m)
	return &lofamov1.RaiseEurekaResponse{Epoch: m.GetEpoch(), Number: m.GetNumber(), Links: uint32(links)}, nil
}

func checkRaise(req *lofamov1.RaiseEurekaRequest) error {
	err := jobs.CheckName("job", req.GetJob(), servicenet.MaxJob)
	if err == nil {
		err = jobs.CheckName("topic", req.GetTopic(), servicenet.MaxTopic)
	}
	switch {
	case err != nil:
		return status.Error(codes.InvalidArgument, err.Error())
	case len(req.GetBody()) > servicenet.MaxEurekaBody:
		return status.Errorf(codes.InvalidArgument, "body: given %d bytes: want at most %d", len(req.GetBody()), servicenet.MaxEurekaBody)
	case req.GetPriority() > servicenet.MaxEurekaUrgency:
		return status.Errorf(codes.InvalidArgument, "priority: given %d: want 0 to %d", req.GetPriority(), servicenet.MaxEurekaUrgency)
	}
	return nil
}

// begin gives a eureka its number, which is also the request's. Numbers grow across restarts of the half within its
// boot epoch, because the time since the machine's boot does.
func (e *eurekas) begin(now time.Time, uid uint32, sinceBoot time.Duration) (uint64, chan jobs.Mail, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.limit.Take(now, uid) {
		return 0, nil, status.Errorf(codes.ResourceExhausted, "eurekas: uid %d raises too many: want at most %.0f a second, or %.0f at once", uid,
			e.limit.Rate, e.limit.Burst)
	}
	e.number = max(e.number+1, uint64(sinceBoot))
	answer := make(chan jobs.Mail, 1)
	e.asked[e.number] = answer
	return e.number, answer, nil
}

func (e *eurekas) finish(request uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.asked, request)
}

// taken hands the DNP half's answer to the caller, if he still waits.
func (e *eurekas) taken(m jobs.Mail) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if answer := e.asked[m.Request]; answer != nil {
		answer <- m
		delete(e.asked, m.Request)
	}
}

// post has the DNP half raise a eureka, and returns the number of links that it leaves by. It repeats the request
// until that half answers, because mailboxes are short and drop messages. The DNP half raises nothing twice.
func (s *Server) post(ctx context.Context, m jobs.Mail, answer <-chan jobs.Mail) (links uint8, err error) {
	end, again := time.NewTimer(takenWithin), time.NewTicker(postAgain)
	defer end.Stop()
	defer again.Stop()
	posted, refused := false, s.half.Post(m)
	for {
		posted = posted || refused == nil
		select {
		case <-ctx.Done():
			return 0, status.FromContextError(ctx.Err()).Err()
		case <-again.C:
			refused = s.half.Post(m)
		case <-end.C:
			if !posted {
				return 0, unavailable(ReasonSilent, "no node was notified: %v", refused)
			}
			return 0, unavailable(ReasonSilent, "the DNP half does not answer within %s: it is not known whether any node was "+
				"notified", takenWithin)
		case a := <-answer:
			return takenBy(a)
		}
	}
}

func takenBy(a jobs.Mail) (links uint8, err error) {
	switch a.Result {
	case jobs.OK:
		return a.Links, nil
	case jobs.NoLinks:
		return 0, unavailable(ReasonNoLinks, "no node was notified: no link of this node lives")
	case jobs.Busy:
		return 0, status.Error(codes.ResourceExhausted, "no node was notified: the DNP half has too many broadcasts to send")
	default:
		return 0, status.Errorf(codes.Internal, "no node was notified: %s", a.Result)
	}
}
