package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Incidents is the part of the store with the incidents. Only Incident needs a quorum.
type Incidents interface {
	Incident(ctx context.Context, id string) (*store.StoredIncident, error)
	LocalIncident(ctx context.Context, id string) (*store.StoredIncident, error)
}

// Bounds of incidents.
const (
	maxIncidentPage = 10_000
	maxNote         = 4 << 10 // bytes
	maxNotes        = 32
	// maxIncidentBytes bounds the incidents in one message: less than the 4 MiB that gRPC clients accept by default. One incident
	// has less than 1 MiB.
	maxIncidentBytes = 2 << 20
	// acknowledgeTries is the number of attempts to write an acknowledgement while other writes change the incident.
	acknowledgeTries = 5
)

// Reasons of refusals, as in errors.go.
const (
	reasonIncidentClosed = "INCIDENT_CLOSED"
	reasonOtherCluster   = "OTHER_CLUSTER"
)

// Incidents returns all incidents in this replica's copy, in no order and read-only; none before the copy was read.
func (s *Server) Incidents() []*lofamov1.Incident {
	if s.cfg.IncidentFeed == nil {
		return nil
	}
	var out []*lofamov1.Incident
	for _, in := range s.cfg.IncidentFeed.View().Incidents {
		out = append(out, in.Incident)
	}
	return out
}

// incidentsHere refuses calls on a parent of regions.
func (s *Server) incidentsHere() error {
	if s.cfg.Incidents == nil {
		return cmp.Or(s.elsewhere(nil), status.Error(codes.Unimplemented, "incidents: this supervisor keeps none"))
	}
	return nil
}

// incidentFilter returns the filter of a request.
func (s *Server) incidentFilter(states []lofamov1.IncidentState, node string) (func(*lofamov1.Incident) bool, error) {
	for _, st := range states {
		if !awareness.IncidentState(st).Valid() {
			return nil, invalid("states", "given %v: want OPEN, RECOVERING or CLOSED", st)
		}
	}
	id, err := s.findOptional(node)
	if err != nil {
		return nil, err
	}
	return func(in *lofamov1.Incident) bool {
		return (len(states) == 0 || slices.Contains(states, in.GetState())) && (id == "" || concerns(in, id))
	}, nil
}

// concerns reports whether a node has a part in an incident.
func concerns(in *lofamov1.Incident, id fault.NodeID) bool {
	return in.GetNode() == string(id) || in.GetPeer() == string(id) ||
		slices.ContainsFunc(in.GetConsequences(), func(c *lofamov1.Consequence) bool { return c.GetNode() == string(id) })
}

// ListIncidents implements the service.
func (s *Server) ListIncidents(ctx context.Context, req *lofamov1.ListIncidentsRequest) (*lofamov1.ListIncidentsResponse, error) {
	keep, err := s.incidentFilter(req.GetStates(), req.GetNode())
	if err != nil {
		return nil, err
	}
	if req.GetSince() != nil && req.GetSince().CheckValid() != nil {
		return nil, invalid("since", "given %v: want a time", req.GetSince())
	}
	bare := proto.CloneOf(req)
	bare.Continue = ""
	hash, page, err := paging(bare, req.GetLimit(), req.GetContinue(), maxIncidentPage)
	if err != nil {
		return nil, err
	}
	list := s.listHere
	if s.isParent() {
		list = s.listBelow
	}
	resp, err := list(ctx, req, keep)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(resp.Incidents, func(a, b *lofamov1.Incident) int {
		return cmp.Or(b.GetSince().AsTime().Compare(a.GetSince().AsTime()), strings.Compare(a.GetId(), b.GetId()))
	})
	pageOfIncidents(resp, hash, page, int(req.GetLimit()))
	return resp, nil
}

// listHere returns the incidents that this supervisor keeps.
func (s *Server) listHere(ctx context.Context, req *lofamov1.ListIncidentsRequest,
	keep func(*lofamov1.Incident) bool) (*lofamov1.ListIncidentsResponse, error) {
	if err := s.incidentsHere(); err != nil {
		return nil, err
	}
	cluster, _ := s.catchUp(ctx)
	resp := &lofamov1.ListIncidentsResponse{Stale: cluster.GetStale()}
	set, err := s.cfg.IncidentFeed.Read(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	resp.Revision = set.Revision
	for _, in := range set.All() {
		if keep(in.Incident) && (req.GetSince() == nil || !in.GetSince().AsTime().Before(req.GetSince().AsTime())) {
			resp.Incidents = append(resp.Incidents, in.Incident)
		}
	}
	return resp, nil
}

// pageOfIncidents cuts one page out of the list: at most limit incidents (0: no limit), and no more than fit into one
// message. A token holds the since of the last incident on the previous page, and how many incidents of that time end
// the page.
func pageOfIncidents(resp *lofamov1.ListIncidentsResponse, hash uint64, page *token, limit int) {
	list := resp.GetIncidents()
	at := func(i int) uint64 { return uint64(list[i].GetSince().AsTime().UnixNano()) }
	if page != nil {
		from := 0
		for same := uint64(0); from < len(list) && (at(from) > page.revision || at(from) == page.revision && same < page.position); from++ {
			if at(from) == page.revision {
				same++
			}
		}
		list = list[from:]
	}
	if fit := fitting(list); limit == 0 || fit < limit {
		limit = fit
	}
	if len(list) > limit {
		last := token{request: hash, revision: at(limit - 1)}
		for i := range limit {
			if at(i) == last.revision {
				last.position++
			}
		}
		if page != nil && page.revision == last.revision {
			last.position += page.position
		}
		resp.Continue, list = last.String(), list[:limit]
	}
	resp.Incidents = list
}

// fitting returns how many incidents from the start of a list fit into one message; at least one.
func fitting[I proto.Message](list []I) int {
	size := 0
	for i, in := range list {
		if size += proto.Size(in); size > maxIncidentBytes && i > 0 {
			return i
		}
	}
	return len(list)
}

// checkIncidentID refuses an ID that cannot be one of this cluster's.
func (s *Server) checkIncidentID(id string) error {
	switch tag := awareness.ClusterTag(s.cfg.Info.GetCluster()); {
	case !awareness.ValidIncidentID(id):
		return invalid("id", "given %.64q: want an incident's id, such as %s-7qm2xw4d", id, tag)
	case !strings.HasPrefix(id, tag+"-"):
		return withInfo(codes.NotFound, reasonOtherCluster, "incident "+id+" belongs to another cluster: the ids of cluster "+
			s.cfg.Info.GetCluster()+" begin with "+tag, nil)
	}
	return nil
}

func noIncident(id string) error {
	return status.Errorf(codes.NotFound, "incident %s: there is none, or it is no longer kept", id)
}

// GetIncident implements the service.
func (s *Server) GetIncident(ctx context.Context, req *lofamov1.GetIncidentRequest) (*lofamov1.Incident, error) {
	if s.isParent() {
		return s.getBelow(ctx, req.GetId())
	}
	if err := cmp.Or(s.incidentsHere(), s.checkIncidentID(req.GetId())); err != nil {
		return nil, err
	}
	s.catchUp(ctx)
	in, err := s.cfg.Incidents.LocalIncident(ctx, req.GetId())
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if in == nil {
		return nil, noIncident(req.GetId())
	}
	return in.Incident, nil
}

// WatchIncidents implements the service.
func (s *Server) WatchIncidents(req *lofamov1.WatchIncidentsRequest,
	stream grpc.ServerStreamingServer[lofamov1.WatchIncidentsResponse]) error {
	keep, err := s.incidentFilter(req.GetStates(), req.GetNode())
	if err != nil {
		return err
	}
	if s.isParent() {
		s.cfg.Metrics.Watchers.Inc()
		defer s.cfg.Metrics.Watchers.Dec()
		return s.watchBelow(req, stream)
	}
	if err := s.incidentsHere(); err != nil {
		return err
	}
	ctx := stream.Context()
	if err := s.checkResume(ctx, req.GetAfterRevision()); err != nil {
		return err
	}
	s.cfg.Metrics.Watchers.Inc()
	defer s.cfg.Metrics.Watchers.Dec()
	w := incidentWatch{keep: keep, after: req.GetAfterRevision(), sent: make(map[string]uint64)}
	if w.resuming = req.GetAfterRevision() > 0; w.resuming {
		w.left = make(map[string]bool)
		if w.of, err = s.incidentFilter(nil, req.GetNode()); err != nil {
			return err
		}
	}
	for {
		v := s.cfg.IncidentFeed.View()
		if v.Ready {
			if err := w.resume(v); err != nil {
				return err
			}
			resp := s.nextIncidents(&w, v, func(id string) bool { return s.cfg.IncidentFeed.Of(id) != nil })
			if err := sendIncidents(resp, stream.Send); err != nil {
				return err
			}
		}
		if err := await(ctx, s.cfg.Stopping, v.Changed); err != nil {
			return err
		}
	}
}

// checkResume refuses a watch of incidents after a revision from the future, or after one that was lost when the store was restored. Such a
// client may know incidents that do not exist. A watch after 0 does not resume.
func (s *Server) checkResume(ctx context.Context, after uint64) error {
	if after == 0 {
		return nil
	}
	if _, err := s.startOf(ctx, after); err != nil {
		return err
	}
	b, err := s.cfg.Copy.Bounds(ctx)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	refusal, _ := asExpired(lostIn(b, after), listAgain)
	return refusal
}

// nextIncidents returns what a watch has to send, and counts the versions that it leaves out.
func (s *Server) nextIncidents(w *incidentWatch, v store.IncidentView, kept func(id string) bool) *lofamov1.WatchIncidentsResponse {
	skipped := w.skipped
	resp := w.next(v.After(w.after), v.Revision, kept)
	s.cfg.Metrics.IncidentsSkipped.Add(float64(w.skipped - skipped))
	return resp
}

// sendIncidents sends a response in as many messages as its size needs; none for nil. A client that resumes after one
// of them misses nothing: if two messages share a revision, its incidents are sent again.
func sendIncidents(resp *lofamov1.WatchIncidentsResponse, send func(*lofamov1.WatchIncidentsResponse) error) error {
	for resp != nil {
		n := fitting(resp.GetIncidents())
		if n == len(resp.GetIncidents()) {
			return send(resp)
		}
		rest := resp.GetIncidents()[n:]
		if err := send(&lofamov1.WatchIncidentsResponse{
			Incidents: resp.GetIncidents()[:n], Revision: rest[0].GetRevision() - 1, Skipped: resp.GetSkipped(),
		}); err != nil {
			return err
		}
		resp = &lofamov1.WatchIncidentsResponse{
			Incidents: rest, Revision: resp.GetRevision(), Gone: resp.GetGone(), Skipped: resp.GetSkipped(),
		}
	}
	return nil
}

// incidentWatch is one watch of incidents. It has no queue: a slow client gets the newest form of what changed meanwhile.
type incidentWatch struct {
	keep    func(*lofamov1.Incident) bool
	after   uint64
	sent    map[string]uint64 // version of each incident that the client knows
	skipped uint64
	begun   bool

	resuming bool // the client resumes, and no view has reached its revision yet

	// A client that resumes may know incidents that sent does not contain, so that each that is outside the filter is sent
	// once. left holds those that the client knows to be outside; nil: the client does not resume.
	left map[string]bool
	of   func(*lofamov1.Incident) bool // the part of keep that does not depend on the state
}

// resume notes the incidents that a resuming client knows: those that have not changed after the client's revision. It does so with each
// view until the copy has reached that revision. It refuses the client if an incident has changed after it and is no longer kept.
func (w *incidentWatch) resume(v store.IncidentView) error {
	if !w.resuming {
		return nil
	}
	if w.after < v.Trimmed {
		return expired(fmt.Sprintf("after_revision: given %d: want at least %d, the last change of an incident that is no longer kept", w.after,
			v.Trimmed), listAgain)
	}
	for _, in := range v.Incidents {
		if in.GetRevision() <= w.after && w.keep(in.Incident) {
			w.sent[in.GetId()] = in.GetVersion()
		}
	}
	w.resuming = v.Revision < w.after
	return nil
}

// next returns the response for the incidents that changed, or nil if there is nothing to send.
func (w *incidentWatch) next(list []*store.StoredIncident, revision uint64, there func(string) bool) *lofamov1.WatchIncidentsResponse {
	resp := &lofamov1.WatchIncidentsResponse{}
	for _, in := range list {
		version, known := w.sent[in.GetId()]
		passes := w.keep(in.Incident)
		if !passes && !known && (w.left == nil || w.left[in.GetId()] || !w.of(in.Incident)) {
			continue
		}
		if known && in.GetVersion() > version+1 {
			w.skipped += in.GetVersion() - version - 1
		}
		resp.Incidents = append(resp.Incidents, in.Incident)
		if w.sent[in.GetId()] = in.GetVersion(); !passes {
			delete(w.sent, in.GetId())
		}
		if w.left != nil {
			w.left[in.GetId()] = !passes
		}
	}
	maps.DeleteFunc(w.left, func(id string, _ bool) bool { return !there(id) })
	for id := range w.sent {
		if !there(id) {
			delete(w.sent, id)
			resp.Gone = append(resp.Gone, id)
		}
	}
	slices.Sort(resp.Gone)
	w.after = max(w.after, revision)
	resp.Revision, resp.Skipped = w.after, w.skipped
	if w.begun && len(resp.GetIncidents())+len(resp.GetGone()) == 0 {
		return nil
	}
	w.begun = true
	return resp
}

// AcknowledgeIncident implements the service.
func (s *Server) AcknowledgeIncident(ctx context.Context,
	req *lofamov1.AcknowledgeIncidentRequest) (*lofamov1.AcknowledgeIncidentResponse, error) {
	if s.isParent() {
		return nil, s.acknowledgeElsewhere(req.GetId())
	}
	if err := cmp.Or(s.incidentsHere(), s.checkIncidentID(req.GetId())); err != nil {
		return nil, err
	}
	if n := len(req.GetNote()); n > maxNote {
		return nil, invalid("note", "given %d bytes: want at most %d", n, maxNote)
	}
	return lead(ctx, s, func(ctx context.Context, by string) (resp *lofamov1.AcknowledgeIncidentResponse, err error) {
		for range acknowledgeTries { // the incident may change between reading and writing
			if resp, err = s.acknowledgeIncident(ctx, by, req); !errors.Is(err, store.ErrConflict) {
				break
			}
		}
		return resp, err
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.AcknowledgeIncidentResponse, error) {
		return c.AcknowledgeIncident(ctx, req)
	})
}

func (s *Server) acknowledgeIncident(ctx context.Context, by string,
	req *lofamov1.AcknowledgeIncidentRequest) (*lofamov1.AcknowledgeIncidentResponse, error) {
	resp := &lofamov1.AcknowledgeIncidentResponse{}
	revision, err := s.cfg.Operators.Change(ctx, func(store.Topology) ([]store.Write, error) {
		in, err := s.cfg.Incidents.Incident(ctx, req.GetId())
		switch {
		case err != nil:
			return nil, storeUnread(err)
		case in == nil:
			return nil, noIncident(req.GetId())
		}
		noted, err := acknowledged(in.Incident, by, req.GetNote(), time.Now())
		if resp.Incident = noted; err != nil || noted == in.Incident {
			return nil, err
		}
		w, err := in.Noted(noted.GetAcknowledgement(), noted.GetNotes())
		return []store.Write{w}, err
	})
	if err != nil {
		return nil, err
	}
	resp.Revision = revision
	resp.Incident = proto.CloneOf(resp.GetIncident())
	resp.Incident.Revision = max(revision, resp.GetIncident().GetRevision())
	s.cfg.Logger.Info("incident acknowledged", "incident", req.GetId(), "by", by, "revision", revision)
	return resp, nil
}

// acknowledged returns the incident with an acknowledgement and a note, or the same incident if nothing changes. An
// acknowledgement from before an escalation is replaced.
func acknowledged(in *lofamov1.Incident, by, note string, now time.Time) (*lofamov1.Incident, error) {
	if in.GetState() == lofamov1.IncidentState_CLOSED {
		text := "incident " + in.GetId() + " has been CLOSED since " + in.GetUntil().AsTime().Format(time.RFC3339) +
			": want an OPEN or RECOVERING one; nothing was changed"
		if in.GetMergedInto() != "" {
			text += ": incident " + in.GetMergedInto() + " continues it"
		}
		return nil, withInfo(codes.Aborted, reasonIncidentClosed, text, map[string]string{"merged_into": in.GetMergedInto()})
	}
	note = strings.TrimSpace(note)
	acknowledge := in.GetAcknowledgement() == nil || in.GetAcknowledgement().GetOutdated()
	if !acknowledge && note == "" {
		return in, nil
	}
	out := proto.CloneOf(in)
	if acknowledge {
		out.Acknowledgement = &lofamov1.Acknowledgement{By: by, Time: timestamppb.New(now), Escalations: in.GetEscalations()}
	}
	if note != "" {
		if len(out.GetNotes()) >= maxNotes {
			return nil, status.Errorf(codes.ResourceExhausted, "note: incident %s has %d notes: want at most %d", in.GetId(), len(out.GetNotes()),
				maxNotes)
		}
		out.Notes = append(out.Notes, &lofamov1.IncidentNote{By: by, Time: timestamppb.New(now), Text: note})
	}
	return out, nil
}
