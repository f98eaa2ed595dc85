package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
)

// quiet is an API without changes.
type quiet struct {
	lofamov1.FaultSupervisorClient
	lofamov1.ResponseServiceClient
}

// silent is a watch that receives nothing.
type silent struct {
	grpc.ServerStreamingClient[lofamov1.WatchResponse]
	ctx context.Context
}

func (s silent) Recv() (*lofamov1.WatchResponse, error) {
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

func (quiet) Watch(ctx context.Context, _ *lofamov1.WatchRequest,
	_ ...grpc.CallOption) (grpc.ServerStreamingClient[lofamov1.WatchResponse], error) {
	return silent{ctx: ctx}, nil
}

func (quiet) WatchIncidents(context.Context, *lofamov1.WatchIncidentsRequest,
	...grpc.CallOption) (grpc.ServerStreamingClient[lofamov1.WatchIncidentsResponse], error) {
	return nil, status.Error(codes.Unimplemented, "")
}

func (quiet) WatchResponses(context.Context, *lofamov1.WatchResponsesRequest,
	...grpc.CallOption) (grpc.ServerStreamingClient[lofamov1.WatchResponsesResponse], error) {
	return nil, status.Error(codes.Unimplemented, "")
}

func (quiet) GetSummary(context.Context, *lofamov1.GetSummaryRequest, ...grpc.CallOption) (*lofamov1.GetSummaryResponse, error) {
	return &lofamov1.GetSummaryResponse{}, nil
}

// pair is two replicas with pages, and ann, who may log in.
type pair struct {
	t        *testing.T
	ca       *pki.CA
	registry *pki.Registry
	pages    map[string]string // URLs by replica
}

func newPair(t *testing.T) pair {
	t.Helper()
	return newPairWith(t, nil, time.Now)
}

// newPairWith returns a pair with this clock. s1 uses late as its list of revocations, or the common list if late is nil.
func newPairWith(t *testing.T, late *pki.Registry, clock func() time.Time) pair {
	t.Helper()
	return newCutPair(t, late, clock, nil)
}

// newCutPair is newPairWith, where s1 has had no quorum for so long.
func newCutPair(t *testing.T, late *pki.Registry, clock func() time.Time, cut func() time.Duration) pair {
	t.Helper()
	ca, err := pki.NewCA("c")
	if err != nil {
		t.Fatal(err)
	}
	p := pair{t: t, ca: ca, registry: pki.NewRegistry(), pages: map[string]string{}}
	for _, id := range []string{"s1", "s2"} {
		registry, age := p.registry, cut
		if id == "s1" && late != nil {
			registry = late
		}
		if id != "s1" {
			age = nil
		}
		h := httptest.NewServer(p.page(Config{Self: id, QuorumAge: age, Now: clock}, registry))
		t.Cleanup(h.Close)
		p.pages[id] = h.URL
	}
	return p
}

// page returns a replica's pages, with this list of revocations. By default the API has no changes, and the clock is the real one.
func (p pair) page(cfg Config, registry *pki.Registry) *Server {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, p.ca.CertPEM(), 0o600); err != nil {
		p.t.Fatal(err)
	}
	verify, err := pki.LoadVerifier(file, "c", pki.WithRegistry(registry))
	if err != nil {
		p.t.Fatal(err)
	}
	if cfg.Faults == nil {
		cfg.Faults = quiet{}
	}
	cfg.Cluster, cfg.Responses, cfg.Verifier = "c", quiet{}, verify
	cfg.Signer = p.signer(pki.SupervisorIdentity("c", cfg.Self))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Session, cfg.Cookie, cfg.Alive = time.Hour, "test", 10*time.Millisecond
	cfg.Peers = func() []Peer { return []Peer{{ID: "s2"}} }
	s := New(cfg)
	p.t.Cleanup(s.Close)
	return s
}

func (p pair) signer(id pki.Identity) *pki.Signer {
	p.t.Helper()
	s, err := p.ca.IssueSigner(id)
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

var ann = pki.Identity{Cluster: "c", Role: pki.RoleViewer, Name: "ann"}

// loginToken is a token that ann signs for s1.
func (p pair) loginToken() string {
	p.t.Helper()
	token, err := pki.NewWebLogin(p.signer(ann), "s1", time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	return token
}

// revoke revokes the certificates that ann has now.
func (p pair) revoke() { p.registry.Set([]pki.Denial{{Identity: ann, Before: pki.CutOff(time.Now())}}) }

// call asks a replica. The answer is closed when the test ends.
func (p pair) call(method, id, path string, in any, cookies ...*http.Cookie) *http.Response {
	p.t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	p.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, p.pages[id]+path, bytes.NewReader(b))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for _, c := range cookies {
		req.AddCookie(c)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// login returns the answer to a token, and the cookie of the session, or nil.
func (p pair) login(id, token string) (int, *http.Cookie) {
	p.t.Helper()
	resp := p.call(http.MethodPost, id, "/api/login", map[string]string{"token": token}) //nolint:bodyclose // call does
	for _, c := range resp.Cookies() {
		return resp.StatusCode, c
	}
	return resp.StatusCode, nil
}

// handover logs ann in at s1, and returns the handover to s2 with the cookie for s1.
func (p pair) handover() (string, *http.Cookie) {
	p.t.Helper()
	tokens, cookie := p.handovers()
	if len(tokens) != 1 {
		p.t.Fatalf("%d handovers: want one, to s2", len(tokens))
	}
	return tokens[0], cookie
}

// handovers is handover for a replica that may refuse to sign any.
func (p pair) handovers() (tokens []string, cookie *http.Cookie) {
	p.t.Helper()
	code, cookie := p.login("s1", p.loginToken())
	if cookie == nil {
		p.t.Fatalf("login: %d", code)
	}
	var session struct{ Others []struct{ Token string } }
	answer := p.call(http.MethodGet, "s1", "/api/session", nil, cookie) //nolint:bodyclose // call does
	if err := json.NewDecoder(answer.Body).Decode(&session); err != nil {
		p.t.Fatal(err)
	}
	for _, o := range session.Others {
		tokens = append(tokens, o.Token)
	}
	return tokens, cookie
}

// TestHandoverFromBeforeRevocationIsRefused: a handover that a replica signed before the person's revocation gives no session
// afterwards.
func TestHandoverFromBeforeRevocationIsRefused(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	before, _ := p.handover()
	if code, _ := p.login("s2", before); code != http.StatusNoContent {
		t.Fatalf("a handover before the revocation: %d", code)
	}
	token, _ := p.handover()
	p.revoke()
	code, cookie := p.login("s2", token)
	if code != http.StatusUnauthorized {
		t.Errorf("a handover from before the revocation: %d: want %d", code, http.StatusUnauthorized)
	}
	if cookie != nil {
		t.Errorf("a handover from before the revocation gives the session %v", cookie)
	}
}

// TestReplicaWithOldListGivesNoAccess: a replica may get the list of revocations seconds after the others. Its
// handovers and sessions give a revoked person no access: not at the other replicas, and not at this one once it has the list.
func TestReplicaWithOldListGivesNoAccess(t *testing.T) {
	t.Parallel()
	var late atomic.Int64 // nanoseconds by which the replicas' clock is ahead
	old := pki.NewRegistry()
	p := newPairWith(t, old, func() time.Time { return time.Now().Add(time.Duration(late.Load())) })
	login := p.loginToken()
	p.revoke()
	late.Store(int64(5 * time.Second))
	code, cookie := p.login("s1", login)
	if cookie == nil {
		t.Fatalf("login at the replica with the old list: %d", code)
	}
	var session struct{ Others []struct{ Token string } }
	answer := p.call(http.MethodGet, "s1", "/api/session", nil, cookie) //nolint:bodyclose // call does
	if err := json.NewDecoder(answer.Body).Decode(&session); err != nil || len(session.Others) != 1 {
		t.Fatalf("%+v, %v: want a handover to s2", session, err)
	}
	if code, _ := p.login("s2", session.Others[0].Token); code != http.StatusUnauthorized {
		t.Errorf("a handover signed 5 s after the revocation: %d: want %d", code, http.StatusUnauthorized)
	}
	for _, id := range []string{"s2", "s1"} {
		old.Set([]pki.Denial{{Identity: ann, Before: pki.CutOff(time.Now())}})
		if r := p.call(http.MethodGet, id, "/api/session", nil, cookie); r.StatusCode != http.StatusUnauthorized { //nolint:bodyclose // call does
			t.Errorf("%s, with a session that began 5 s after the revocation: %d: want %d", id, r.StatusCode, http.StatusUnauthorized)
		}
	}
}

// TestCutOffReplicaGivesNoAccessElsewhere: a replica without a quorum does not get a revocation for hours. Its handovers
// and sessions give the revoked person no access at the other replicas, and none at this one once it has the list.
// Other people can still log in there, and use their sessions everywhere.
func TestCutOffReplicaGivesNoAccessElsewhere(t *testing.T) {
	t.Parallel()
	for _, cut := range []time.Duration{2 * time.Minute, 9 * time.Minute, 3 * time.Hour, oldestList} {
		old := pki.NewRegistry()
		p := newCutPair(t, old, time.Now, func() time.Duration { return cut })
		use := func(id string, cookie *http.Cookie) int {
			return p.call(http.MethodGet, id, "/api/session", nil, cookie).StatusCode //nolint:bodyclose // call does
		}
		handover, cookie := p.handover()
		for _, id := range []string{"s1", "s2"} {
			if code := use(id, cookie); code != http.StatusOK {
				t.Errorf("cut off for %s: a session at %s, without a revocation: %d", cut, id, code)
			}
		}
		denials := []pki.Denial{{Identity: ann, Before: pki.CutOff(time.Now().Add(-100 * time.Second))}}
		p.registry.Set(denials)
		if code, _ := p.login("s2", handover); code != http.StatusUnauthorized {
			t.Errorf("cut off for %s: a handover signed 100 s after the revocation: %d: want %d", cut, code, http.StatusUnauthorized)
		}
		if code := use("s2", cookie); code != http.StatusUnauthorized {
			t.Errorf("cut off for %s: a session that began 100 s after the revocation: %d: want %d", cut, code, http.StatusUnauthorized)
		}
		old.Set(denials)
		if code := use("s1", cookie); code != http.StatusUnauthorized {
			t.Errorf("cut off for %s: the same at the replica itself, with the list: %d: want %d", cut, code, http.StatusUnauthorized)
		}
	}
}

// TestReplicaWithListOfUnknownAgeGivesNoAccessElsewhere: a replica has had no quorum for longer than a session can be dated back, or none
// since its start. A person whose certificate was revoked long ago can log in there, but gets no access elsewhere.
func TestReplicaWithListOfUnknownAgeGivesNoAccessElsewhere(t *testing.T) {
	t.Parallel()
	for _, cut := range []time.Duration{oldestList + time.Second, 100 * time.Hour, -1} {
		p := newCutPair(t, pki.NewRegistry(), time.Now, func() time.Duration { return cut })
		p.registry.Set([]pki.Denial{{Identity: ann, Before: pki.CutOff(time.Now().Add(-30 * time.Hour))}})
		tokens, cookie := p.handovers()
		if len(tokens) > 0 {
			t.Errorf("cut off for %s: %d handovers: want none", cut, len(tokens))
		}
		for id, want := range map[string]int{"s1": http.StatusOK, "s2": http.StatusUnauthorized} {
			if r := p.call(http.MethodGet, id, "/api/session", nil, cookie); r.StatusCode != want { //nolint:bodyclose // call does
				t.Errorf("cut off for %s: the session at %s: %d: want %d", cut, id, r.StatusCode, want)
			}
		}
	}
}

// TestCutOffReplicaHandsPeopleOver: if a replica has had no quorum for hours, people whose certificates are not revoked can still continue
// at another replica that lacks one, too. Their sessions end there no later than at the first replica, and each handover works once, and
// only within minutes.
func TestCutOffReplicaHandsPeopleOver(t *testing.T) {
	t.Parallel()
	for _, cut := range []time.Duration{0, time.Second, 4 * time.Minute, 9 * time.Minute, 13 * time.Minute, 3 * time.Hour, oldestList} {
		var late atomic.Int64
		p := newCutPair(t, nil, func() time.Time { return time.Now().Add(time.Duration(late.Load())) }, func() time.Duration { return cut })
		token, first := p.handover()
		unused, _ := p.handover()
		code, second := p.login("s2", token)
		if second == nil {
			t.Errorf("cut off for %s: a handover: %d", cut, code)
			continue
		}
		if r := p.call(http.MethodGet, "s2", "/api/session", nil, second); r.StatusCode != http.StatusOK { //nolint:bodyclose // call does
			t.Errorf("cut off for %s: the session: %d", cut, r.StatusCode)
		}
		if second.MaxAge > first.MaxAge {
			t.Errorf("cut off for %s: the session lasts %d s after the handover, and %d s before", cut, second.MaxAge, first.MaxAge)
		}
		if code, _ := p.login("s2", token); code != http.StatusUnauthorized {
			t.Errorf("cut off for %s: a used handover: %d: want %d", cut, code, http.StatusUnauthorized)
		}
		late.Store(int64(pki.WebHandoverLife + pki.WebSkew + time.Second))
		if code, _ := p.login("s2", unused); code != http.StatusUnauthorized {
			t.Errorf("cut off for %s: an old handover: %d: want %d", cut, code, http.StatusUnauthorized)
		}
	}
}

// TestHandoversSuitEarlierReplicas: replicas of earlier versions refuse handovers that end more than ten minutes after the time from which
// they count. A replica that reached a quorum a moment ago signs no such handover.
func TestHandoversSuitEarlierReplicas(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, age := range []time.Duration{0, 900 * time.Millisecond, 4 * time.Minute, 8 * time.Minute} {
		issued := now.Add(-age)
		if life := handoverEnd(issued, now).Sub(issued); life > 10*time.Minute {
			t.Errorf("quorum %s ago: a handover counts for %s: want at most 10m", age, life)
		}
		if left := handoverEnd(issued, now).Sub(now); age < 5*time.Minute && left < 4*time.Minute || left < leastHandover {
			t.Errorf("quorum %s ago: a handover lasts %s: want more than 4m, when the page asks for new ones, with a quorum", age, left)
		}
	}
}

// TestNewCertificateLogsInAfterRevocation: a person with a new certificate can log in after listDelay. Earlier, the replica refuses the
// login itself.
func TestNewCertificateLogsInAfterRevocation(t *testing.T) {
	t.Parallel()
	var late atomic.Int64
	p := newPairWith(t, nil, func() time.Time { return time.Now().Add(time.Duration(late.Load())) })
	p.registry.Set([]pki.Denial{{Identity: ann, Before: pki.CutOff(time.Now().Add(-2 * time.Second))}})
	if code, _ := p.login("s1", p.loginToken()); code != http.StatusUnauthorized {
		t.Errorf("a login 2 s after the revocation: status %d: want %d", code, http.StatusUnauthorized)
	}
	late.Store(int64(listDelay))
	code, cookie := p.login("s1", p.loginToken())
	if cookie == nil {
		t.Fatalf("%s after the revocation: %d", listDelay, code)
	}
	if r := p.call(http.MethodGet, "s2", "/api/session", nil, cookie); r.StatusCode != http.StatusOK { //nolint:bodyclose // call does
		t.Errorf("with the session: %d: want %d", r.StatusCode, http.StatusOK)
	}
}

// TestStreamEndsWithRevocation: an open stream ends once its person's certificate is revoked.
func TestStreamEndsWithRevocation(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	_, cookie := p.handover()
	stream := p.call(http.MethodGet, "s1", "/api/stream?after=1", nil, cookie) //nolint:bodyclose // call does
	if stream.StatusCode != http.StatusOK {
		t.Fatalf("stream: %d", stream.StatusCode)
	}
	if _, err := io.ReadFull(stream.Body, make([]byte, 100)); err != nil {
		t.Fatalf("before the revocation: %v", err)
	}
	p.revoke()
	if _, err := io.Copy(io.Discard, stream.Body); errors.Is(err, context.DeadlineExceeded) {
		t.Error("the stream outlives the revocation")
	} else if err != nil {
		t.Error(err)
	}
}
