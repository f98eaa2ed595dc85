package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// streams counts the open streams.
type streams struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by subject

	last   standing // latest standing of the replica
	err    error
	at     time.Time
	asking chan struct{} // closed when the pending request has its answer; nil: none pending
}

// enter reserves a stream; false: the limit is reached.
func (s *streams) enter(subject string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxStreams || s.of[subject] >= maxStreamsSubject {
		return false
	}
	if s.of == nil {
		s.of = make(map[string]int)
	}
	s.all++
	s.of[subject]++
	return true
}

func (s *streams) leave(subject string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[subject]--; s.of[subject] == 0 {
		delete(s.of, subject)
	}
}

// message is one server-sent event.
type message struct {
	name string
	id   uint64 // revision to resume from; 0: none
	data any    // json.RawMessage, or a value to encode as JSON
}

// change is a compact event; empty fields are omitted.
type change struct {
	Revision  uint64  `json:"rev,omitempty"`
	Kind      string  `json:"kind,omitempty"` // empty: COMPONENT_CHANGED
	Node      string  `json:"node,omitempty"`
	Coord     string  `json:"at,omitempty"`
	Component string  `json:"part,omitempty"`
	From      string  `json:"from,omitempty"`
	To        string  `json:"to,omitempty"`
	Cause     int32   `json:"cause,omitempty"`
	Path      string  `json:"path,omitempty"`
	Latency   float64 `json:"ms,omitempty"` // of the awareness, in milliseconds
	Time      int64   `json:"time"`         // of the commit, in milliseconds since 1970
	Observer  string  `json:"by,omitempty"`
	Reason    string  `json:"why,omitempty"`
	Single    bool    `json:"single,omitempty"`
	Ended     bool    `json:"ended,omitempty"`
	Group     string  `json:"group,omitempty"` // id
	Size      uint32  `json:"size,omitempty"`  // of the group
	Region    string  `json:"region,omitempty"`
}

func changeOf(e *lofamov1.Event) change {
	c := change{
		Revision: e.GetRevision(), Node: e.GetNode(), Coord: e.GetCoord(), Component: e.GetComponent(), Cause: int32(e.GetCause()),
		Time:     e.GetTime().AsTime().UnixMilli(),
		Observer: e.GetObserver(), Reason: e.GetReason(), Single: e.GetSingleWitness(), Ended: e.GetEnded(), Region: e.GetRegion(),
		Group: e.GetGroup().GetId(), Size: e.GetGroup().GetSize(),
	}
	if e.GetKind() != lofamov1.EventKind_COMPONENT_CHANGED {
		c.Kind = e.GetKind().String()
	}
	if e.GetFrom() != lofamov1.State_STATE_UNSPECIFIED {
		c.From = e.GetFrom().String()
	}
	if e.GetTo() != lofamov1.State_STATE_UNSPECIFIED {
		c.To = e.GetTo().String()
	}
	if e.GetPath() != lofamov1.Path_PATH_UNSPECIFIED {
		c.Path = e.GetPath().String()
	}
	if l := e.GetAwarenessLatency(); l != nil {
		c.Latency = float64(l.AsDuration().Microseconds()) / 1000
	}
	if w := e.GetWarning(); w != nil {
		c.Reason = w.GetReason()
	}
	if m := e.GetMaintenance(); m != nil {
		c.Reason = m.GetReason()
	}
	return c
}

func changesOf(events []*lofamov1.Event) []change {
	out := make([]change, len(events))
	for i, e := range events {
		out[i] = changeOf(e)
	}
	return out
}

// stream sends changes until the browser leaves, is too slow, or its session ends. Before each status message it checks
// whether the visitor's certificate was revoked. Changes wait for the browser in this stream's own buffers. The watch
// behind it is bounded, and is cut off when they are full (fanout).
func (s *Server) stream(w http.ResponseWriter, r *http.Request, who visitor) {
	after, err := startOf(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if !s.streams.enter(who.Subject) {
		w.Header().Set("Retry-After", "5")
		refuse(w, http.StatusServiceUnavailable, "too many pages are open here: close some, or ask another supervisor")
		return
	}
	defer s.streams.leave(who.Subject)
	ctx, cancel := context.WithDeadline(r.Context(), time.Unix(who.Expires, 0))
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	ctx = speak(ctx, who)
	out := make(chan message)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { s.follow(ctx, after, out) })
	wg.Go(func() { s.again(ctx, out, "noresponses", s.watchResponses) })
	wg.Go(func() { s.again(ctx, out, "noincidents", s.watchIncidents) })
	wg.Go(func() { defer cancel(); s.sayAlive(ctx, who, out) })
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // a proxy should pass on events at once
	flusher := http.NewResponseController(w)
	if err := writeMessage(w, flusher, "retry: 1000\n\n"); err != nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-out:
			text, err := m.text()
			if err != nil {
				s.cfg.Logger.Warn("web: cannot send a change", "err", err)
				return
			}
			if writeMessage(w, flusher, text) != nil || m.name == "reset" || m.name == "again" {
				return
			}
		}
	}
}

// startOf returns the revision to resume from: a browser that reconnects by itself sends it in the header.
func startOf(r *http.Request) (uint64, error) {
	given := r.Header.Get("Last-Event-ID")
	if given == "" {
		given = r.URL.Query().Get("after")
	}
	after, err := strconv.ParseUint(given, 10, 64)
	if err != nil || after == 0 {
		return 0, fmt.Errorf("after: given %.20q: want a revision, from 1", given)
	}
	return after, nil
}

func (m message) text() (string, error) {
	b, err := json.Marshal(m.data) // without line ends
	if err != nil {
		return "", err
	}
	id := ""
	if m.id > 0 {
		id = "id: " + strconv.FormatUint(m.id, 10) + "\n"
	}
	return id + "event: " + m.name + "\ndata: " + string(b) + "\n\n", nil
}

func writeMessage(w http.ResponseWriter, c *http.ResponseController, text string) error {
	if err := c.SetWriteDeadline(time.Now().Add(writeTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := w.Write([]byte(text)); err != nil {
		return err
	}
	return c.Flush()
}

// say waits until a message is accepted. It returns false if the stream has ended.
func say(ctx context.Context, out chan<- message, m message) bool {
	select {
	case out <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// follow sends changes. It ends with "reset" when the page must read the map again, and with "again" when the page
// should reconnect.
func (s *Server) follow(ctx context.Context, after uint64, out chan<- message) {
	end := func(err error) {
		name := "again"
		if status.Code(err) == codes.OutOfRange {
			name = "reset"
		}
		say(ctx, out, message{name: name, data: status.Convert(err).Message()})
	}
	in, err := s.cfg.Faults.Watch(ctx, &lofamov1.WatchRequest{AfterRevision: after})
	if err != nil {
		end(err)
		return
	}
	for {
		resp, err := in.Recv()
		if err != nil {
			end(err)
			return
		}
		m := message{name: "changes", id: resp.GetRevision(), data: changesOf(resp.GetEvents())}
		if !say(ctx, out, m) {
			return
		}
	}
}

// againAfter is the pause after a watch of responses or incidents has ended, as it does when the leader changes.
const againAfter = time.Second

// again keeps a watch going. If the supervisor has nothing to watch, it sends the reason under the name none.
func (s *Server) again(ctx context.Context, out chan<- message, none string, watch func(context.Context, chan<- message) error) {
	for ctx.Err() == nil {
		err := watch(ctx, out)
		if slices.Contains([]codes.Code{codes.Unimplemented, codes.FailedPrecondition, codes.PermissionDenied}, status.Code(err)) {
			say(ctx, out, message{name: none, data: status.Convert(err).Message()})
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(againAfter):
		}
	}
}

// watchResponses sends the present responses, and their changes.
func (s *Server) watchResponses(ctx context.Context, out chan<- message) error {
	in, err := s.cfg.Responses.WatchResponses(ctx, &lofamov1.WatchResponsesRequest{})
	if err != nil {
		return err
	}
	return pass(ctx, out, "responses", in.Recv)
}

// watchIncidents sends the incidents that are not closed, and their changes, each in its newest form.
func (s *Server) watchIncidents(ctx context.Context, out chan<- message) error {
	in, err := s.cfg.Faults.WatchIncidents(ctx, &lofamov1.WatchIncidentsRequest{
		States: []lofamov1.IncidentState{lofamov1.IncidentState_OPEN, lofamov1.IncidentState_RECOVERING},
	})
	if err != nil {
		return err
	}
	return pass(ctx, out, "incidents", in.Recv)
}

// pass sends the messages of a watch. The first message has the prefix "all": it replaces earlier ones.
func pass[R proto.Message](ctx context.Context, out chan<- message, name string, receive func() (R, error)) error {
	for prefix := "all"; ; prefix = "" {
		resp, err := receive()
		if err != nil {
			return err
		}
		b, err := encoding.Marshal(resp)
		if err != nil {
			return err
		}
		if !say(ctx, out, message{name: prefix + name, data: json.RawMessage(b)}) {
			return ctx.Err()
		}
	}
}

// sayAlive sends the replica's standing once a period, which also shows the page that the stream works. It returns when
// the stream has ended, or when the visitor's certificate was revoked.
func (s *Server) sayAlive(ctx context.Context, who visitor, out chan<- message) {
	t := time.NewTicker(s.cfg.Alive)
	defer t.Stop()
	for !s.revoked(who.WebClaims) {
		st, err := s.standing(ctx)
		m := message{name: "alive", data: st}
		if err != nil {
			m = message{name: "alive", data: standing{Stale: true, StaleMs: -1, CutOff: []string{}}}
		}
		if !say(ctx, out, m) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// standing queries the standing, once for all streams that need it at the same time.
func (s *Server) standing(ctx context.Context) (standing, error) {
	k := &s.streams
	for {
		k.mu.Lock()
		if time.Since(k.at) < s.cfg.Alive/2 {
			defer k.mu.Unlock()
			return k.last, k.err
		}
		if wait := k.asking; wait != nil {
			k.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return standing{}, ctx.Err()
			}
		}
		done := make(chan struct{})
		k.asking = done
		k.mu.Unlock()
		// Not with this stream's context: other streams wait for the answer.
		actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*s.cfg.Alive)
		resp, err := s.cfg.Faults.GetSummary(actx, &lofamov1.GetSummaryRequest{})
		cancel()
		k.mu.Lock()
		k.last, k.err, k.at, k.asking = standingOf(resp.GetCluster(), resp.GetRevision()), err, time.Now(), nil
		k.mu.Unlock()
		close(done)
	}
}
