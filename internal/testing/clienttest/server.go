// Package clienttest is a fault supervisor for tests: it returns configured answers, over real gRPC with mutual TLS. It
// makes no decisions.
package clienttest

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// Cluster is the name of the cluster in the certificates.
const Cluster = "test"

// PKI makes an authority, a viewer's certificate and a supervisor's in a directory: ca.pem,
// viewer.pem, viewer.key, sup.pem, sup.key.
func PKI(t testing.TB, dir string) {
	t.Helper()
	if err := MakePKI(dir); err != nil {
		t.Fatal(err)
	}
}

// MakePKI is PKI outside a test.
func MakePKI(dir string) error {
	ca, err := pki.NewCA(Cluster)
	if err != nil {
		return err
	}
	if err := ca.Save(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")); err != nil {
		return err
	}
	for file, id := range map[string]pki.Identity{
		"viewer": {Cluster: Cluster, Role: pki.RoleViewer, Name: "v"},
		"sup":    pki.SupervisorIdentity(Cluster, "sup-0"),
	} {
		if err := ca.IssueTo(filepath.Join(dir, file+".pem"), filepath.Join(dir, file+".key"), id, []net.IP{net.IPv4(127, 0, 0, 1),
			freeport.IP().AsSlice()}, nil); err != nil {
			return err
		}
	}
	return nil
}

// ClientTLS is the viewer's configuration from the files that PKI made.
func ClientTLS(t testing.TB, dir string) *tls.Config {
	t.Helper()
	c, err := pki.ClientTLS(filepath.Join(dir, "viewer.pem"), filepath.Join(dir, "viewer.key"), filepath.Join(dir, "ca.pem"),
		pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Map is a fault map that several servers may share, as replicas share a store.
type Map struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change

	Nodes       *lofamov1.ListNodesResponse
	Links       *lofamov1.ListLinksResponse
	Supervisors *lofamov1.ListSupervisorsResponse
	Reports     *lofamov1.ListReportsResponse
	Groups      *lofamov1.ListGroupsResponse
	Summary     *lofamov1.GetSummaryResponse
	Explanation *lofamov1.ExplainResponse
	History     *lofamov1.GetHistoryResponse
	Incidents   []*lofamov1.Incident
	// MissingRegions has the missing regions of each page of incidents, by the value of continue in its request.
	MissingRegions map[string][]string
	// IncidentWatches has the answers of successive watches of incidents, each of which then breaks off. Later watches, or all
	// if there are none, send all incidents once, and end.
	IncidentWatches [][]*lofamov1.WatchIncidentsResponse
	// OldestRevision is the oldest kept revision in lists of events.
	OldestRevision uint64
	Initial        []*lofamov1.Event // the map for a watch with initial, one event per response
	commits        []*lofamov1.WatchResponse
	seen           []*lofamov1.Event
	compacted      uint64
}

// NewMap returns an empty map.
func NewMap() *Map {
	return &Map{changed: make(chan struct{}), Nodes: &lofamov1.ListNodesResponse{}, Links: &lofamov1.ListLinksResponse{},
		Supervisors: &lofamov1.ListSupervisorsResponse{},
		Reports:     &lofamov1.ListReportsResponse{}, Groups: &lofamov1.ListGroupsResponse{}, Summary: &lofamov1.GetSummaryResponse{},
		Explanation: &lofamov1.ExplainResponse{}, History: &lofamov1.GetHistoryResponse{}}
}

func (m *Map) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Edit changes the map's answers while it is served.
func (m *Map) Edit(change func(*Map)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

// Commit adds the events of one transaction.
func (m *Map) Commit(revision uint64, events ...*lofamov1.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range events {
		e.Revision = revision
	}
	m.commits = append(m.commits, &lofamov1.WatchResponse{Revision: revision, Events: events})
	m.wake()
}

// See adds an event that is not committed yet.
func (m *Map) See(e *lofamov1.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.AsSeen = true
	m.seen = append(m.seen, e)
	m.wake()
}

// Compact forgets revisions up to and including this one.
func (m *Map) Compact(revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compacted = revision
}

func (m *Map) revision() uint64 {
	if n := len(m.commits); n > 0 {
		return m.commits[n-1].GetRevision()
	}
	return 1
}

// Server is one replica.
type Server struct {
	lofamov1.UnimplementedFaultSupervisorServer
	lofamov1.UnimplementedReconfigureServer
	Address   string
	Admin     Admin
	Manage    Manage
	Responses Responses
	// Certificates is for calls about certificates.
	Certificates Certificates
	// Enrolment is for calls about tokens.
	Enrolment Enrolment
	// Operators is guarded by mu after the first call.
	Operators Operators
	m         *Map
	grpc      *grpc.Server

	mu sync.Mutex
	// refuse, if set, is the error of every call; watches are cut.
	refuse error
	// refuseIf, if set, returns the error of each call that ask records.
	refuseIf func(proto.Message) error
	cut      chan struct{}
	// afterSends is the number of answers after which a watch is cut, 0 for never.
	afterSends int
	watches    int
	bundle     *Bundle
	asked      []proto.Message
	expire     bool
}

// Serve starts a replica of the map at a free address, with the certificates in dir. It stops with the test. No other process
// takes its address meanwhile.
func Serve(t testing.TB, dir string, m *Map) *Server {
	t.Helper()
	return ServeAt(t, dir, m, freeport.Addr(t).String())
}

// ServeAt is Serve at an address.
func ServeAt(t testing.TB, dir string, m *Map, address string) *Server {
	t.Helper()
	s, err := StartIn(dir, address, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// StartIn is ServeAt outside a test: the caller stops it.
func StartIn(dir, address string, m *Map) (*Server, error) {
	conf, err := pki.ServerTLS(filepath.Join(dir, "sup.pem"), filepath.Join(dir, "sup.key"), filepath.Join(dir, "ca.pem"), nil)
	if err != nil {
		return nil, err
	}
	return Start(conf, address, m, nil)
}

// Start is ServeAt outside a test, for a program that plays a supervisor. Unless it is nil, prepare changes the server before
// the first call.
func Start(conf *tls.Config, address string, m *Map, prepare func(*Server)) (*Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Server{Address: l.Addr().String(), m: m, cut: make(chan struct{})}
	if prepare != nil {
		prepare(s)
	}
	s.grpc = grpc.NewServer(grpc.Creds(credentials.NewTLS(conf)))
	lofamov1.RegisterFaultSupervisorServer(s.grpc, s)
	lofamov1.RegisterSupervisorAdminServer(s.grpc, &s.Admin)
	lofamov1.RegisterManageServer(s.grpc, &s.Manage)
	lofamov1.RegisterReconfigureServer(s.grpc, s)
	lofamov1.RegisterResponseServiceServer(s.grpc, &s.Responses)
	lofamov1.RegisterCertificatesServer(s.grpc, &s.Certificates)
	lofamov1.RegisterEnrolmentServer(s.grpc, &s.Enrolment)
	go func() { _ = s.grpc.Serve(l) }() // ends with Stop
	return s, nil
}

// Stop ends the replica as a killed process would.
func (s *Server) Stop() { s.grpc.Stop() }

// Refuse makes every call fail with err, and cuts the watches; nil ends that.
func (s *Server) Refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
	if err != nil {
		close(s.cut)
		s.cut = make(chan struct{})
	}
}

// RefuseIf makes calls for lists, summaries, explanations, histories and watches fail with the error that refuse returns
// for their request, and cuts the watches; nil ends that. Calls of refuse may overlap.
func (s *Server) RefuseIf(refuse func(proto.Message) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuseIf = refuse
	close(s.cut)
	s.cut = make(chan struct{})
}

// CutWatchesAfter cuts every watch after the given number of answers.
func (s *Server) CutWatchesAfter(answers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.afterSends = answers
}

// Watches returns the number of started watches.
func (s *Server) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches
}

func (s *Server) refused() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refuse
}

// ListNodes answers with the map's, filtered by state.
func (s *Server) ListNodes(_ context.Context, req *lofamov1.ListNodesRequest) (*lofamov1.ListNodesResponse, error) {
	if err := s.ask(req); err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	out := proto.Clone(s.m.Nodes).(*lofamov1.ListNodesResponse)
	chosen := filter(out.Nodes, req.GetStates(), (*lofamov1.Node).GetState)
	var err error
	out.Nodes, out.Continue, err = page(s, chosen, req.GetLimit(), req.GetContinue())
	return out, err
}

func filter[T any](all []T, want []lofamov1.State, state func(T) lofamov1.State) []T {
	if len(want) == 0 {
		return all
	}
	var out []T
	for _, v := range all {
		for _, w := range want {
			if state(v) == w {
				out = append(out, v)
			}
		}
	}
	return out
}

// GetNode finds a node by id or coordinates.
func (s *Server) GetNode(_ context.Context, req *lofamov1.GetNodeRequest) (*lofamov1.Node, error) {
	if err := s.refused(); err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	for _, n := range s.m.Nodes.GetNodes() {
		if n.GetId() == req.GetNode() || n.GetCoord() == req.GetNode() {
			return n, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "node %q: no such node", req.GetNode())
}

// ListLinks answers with the map's, filtered by node and state.
func (s *Server) ListLinks(_ context.Context, req *lofamov1.ListLinksRequest) (*lofamov1.ListLinksResponse, error) {
	if err := s.ask(req); err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	out := proto.Clone(s.m.Links).(*lofamov1.ListLinksResponse)
	var links []*lofamov1.Link
	for _, l := range out.GetLinks() {
		if req.GetNode() == "" || l.GetNode() == req.GetNode() || l.GetCoord() == req.GetNode() {
			links = append(links, l)
		}
	}
	var err error
	out.Links, out.Continue, err = page(s, filter(links, req.GetStates(), (*lofamov1.Link).GetState), req.GetLimit(), req.GetContinue())
	return out, err
}

// ListEvents answers with the committed events.
func (s *Server) ListEvents(_ context.Context, req *lofamov1.ListEventsRequest) (*lofamov1.ListEventsResponse, error) {
	if err := s.ask(req); err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	out := &lofamov1.ListEventsResponse{Revision: s.m.revision(), OldestRevision: s.m.OldestRevision}
	for _, c := range s.m.commits {
		if c.GetRevision() > req.GetAfterRevision() {
			for _, e := range c.GetEvents() {
				if req.GetNode() == "" || e.GetNode() == req.GetNode() || e.GetCoord() == req.GetNode() {
					out.Events = append(out.Events, e)
				}
			}
		}
	}
	switch n, limit := len(out.Events), int(req.GetLimit()); {
	case limit == 0 || n <= limit:
	case req.GetAfterRevision() > 0:
		out.Events = out.Events[:limit] // the oldest
	default:
		out.Events = out.Events[n-limit:]
	}
	return out, nil
}

// ListReports answers with the map's, filtered by node and digests and cut.
func (s *Server) ListReports(_ context.Context, req *lofamov1.ListReportsRequest) (*lofamov1.ListReportsResponse, error) {
	if err := s.refused(); err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	out := &lofamov1.ListReportsResponse{}
	for _, r := range s.m.Reports.GetReports() {
		if (req.GetNode() == "" || r.GetNode() == req.GetNode()) && (req.GetDigests() || !r.GetDigest()) {
			out.Reports = append(out.Reports, r)
		}
	}
	if n := int(req.GetLimit()); n > 0 && n < len(out.GetReports()) {
		out.Reports = out.Reports[:n]
	}
	for _, d := range s.m.Reports.GetSenders() {
		if req.GetNode() == "" || d.GetNode() == req.GetNode() {
			out.Senders = append(out.Senders, d)
		}
	}
	return out, nil
}

// ListSupervisors answers with the map's.
func (s *Server) ListSupervisors(context.Context, *lofamov1.ListSupervisorsRequest) (*lofamov1.ListSupervisorsResponse, error) {
	if err := s.refused(); err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.m.Supervisors, nil
}

// Watch streams committed changes, and on request changes as seen.
func (s *Server) Watch(req *lofamov1.WatchRequest, stream grpc.ServerStreamingServer[lofamov1.WatchResponse]) error {
	if err := s.ask(req); err != nil {
		return err
	}
	s.mu.Lock()
	cut, limit := s.cut, s.afterSends
	s.watches++
	s.mu.Unlock()
	after, seen, sent := req.GetAfterRevision(), 0, 0
	if req.GetInitial() {
		s.m.mu.Lock()
		initial, at := s.m.Initial, s.m.revision()
		s.m.mu.Unlock()
		for i, ev := range initial {
			resp := &lofamov1.WatchResponse{Events: []*lofamov1.Event{ev}}
			if i == len(initial)-1 {
				resp.Revision, resp.Synced = at, true
			}
			if err := stream.Send(resp); err != nil {
				return err
			}
			if sent++; sent == limit {
				return status.Error(codes.Unavailable, "cut")
			}
		}
		after = at
	}
	for {
		s.m.mu.Lock()
		if after != 0 && after < s.m.compacted {
			s.m.mu.Unlock()
			return status.Errorf(codes.OutOfRange, "changes that followed revision %d are no longer kept: list again and watch after the list's "+
				"revision", after)
		}
		changed := s.m.changed
		var send []*lofamov1.WatchResponse
		for ; req.GetAsSeen() && seen < len(s.m.seen); seen++ {
			send = append(send, &lofamov1.WatchResponse{Events: []*lofamov1.Event{s.m.seen[seen]}})
		}
		for _, c := range s.m.commits {
			if c.GetRevision() > after {
				send = append(send, c)
				after = c.GetRevision()
			}
		}
		s.m.mu.Unlock()
		for _, r := range send {
			if err := stream.Send(r); err != nil {
				return err
			}
			if sent++; sent == limit {
				return status.Error(codes.Unavailable, "cut")
			}
		}
		select {
		case <-changed:
		case <-cut:
			return status.Error(codes.Unavailable, "cut")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
