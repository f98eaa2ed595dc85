package supervisor_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/web"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// site is a page as a visitor sees it, logged in or not.
type site struct {
	t      *testing.T
	url    string
	client *http.Client
	cookie *http.Cookie // nil: not logged in
}

func newSite(t *testing.T, url string) *site {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &site{t: t, url: url, client: &http.Client{Transport: tr}}
}

// answer is the answer of a page.
type answer struct {
	code    int
	header  http.Header
	cookies []*http.Cookie
	body    []byte
}

// do sends a request, and returns the answer that arrived within the time limit.
func (s *site) do(method, path string, in any, change func(*http.Request)) answer {
	s.t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), supervisortest.Wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if s.cookie != nil {
		req.AddCookie(s.cookie)
	}
	if change != nil {
		change(req)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, resp.Cookies(), out}
}

// want sends a request, requires an answer with that code, and decodes it into out.
func (s *site) want(code int, method, path string, in, out any) {
	s.t.Helper()
	a := s.do(method, path, in, nil)
	if a.code != code {
		s.t.Fatalf("%s %s: %d: %s: want %d", method, path, a.code, a.body, code)
	}
	if out != nil {
		if err := json.Unmarshal(a.body, out); err != nil {
			s.t.Fatalf("%s %s: %v: %s", method, path, err, a.body)
		}
	}
}

// login logs in with a token; false: refused.
func (s *site) login(token string) bool {
	s.t.Helper()
	a := s.do(http.MethodPost, "/api/login", map[string]string{"token": token}, nil)
	if a.code == http.StatusUnauthorized {
		return false
	}
	if a.code != http.StatusNoContent || len(a.cookies) != 1 {
		s.t.Fatalf("login: %d: %s", a.code, a.body)
	}
	s.cookie = a.cookies[0]
	return true
}

// loginAs logs in with the certificate of a role, at s1.
func (s *site) loginAs(c *supervisortest.Cluster, role pki.Role) {
	s.t.Helper()
	token, err := pki.NewWebLogin(signer(s.t, c, string(role)), "s1", time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	if !s.login(token) {
		s.t.Fatalf("login as %s: refused", role)
	}
}

func signer(t *testing.T, c *supervisortest.Cluster, name string) *pki.Signer {
	t.Helper()
	out, err := pki.LoadSigner(filepath.Join(c.Dir, name+".pem"), filepath.Join(c.Dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// stream follows changes until the test ends; code is that of the answer. next waits for an event with that name. Events with
// different names have no order: next keeps the others for later calls.
func (s *site) stream(after uint64) (code int, next func(name string, found func(data string) bool)) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/api/stream?after="+strconv.FormatUint(after, 10), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.AddCookie(s.cookie)
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	kept := map[string][]string{} // by name
	return resp.StatusCode, func(name string, found func(string) bool) {
		s.t.Helper()
		defer context.AfterFunc(wait(s.t), cancel)()
		event := ""
		for {
			for len(kept[name]) > 0 {
				data := kept[name][0]
				if kept[name] = kept[name][1:]; found(data) {
					return
				}
			}
			if !lines.Scan() {
				s.t.Fatalf("the stream ended before %s came: %v", name, lines.Err())
			}
			if v, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				event = v
			}
			if v, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				kept[event] = append(kept[event], v)
			}
		}
	}
}

// wait returns a context that ends after the time limit of these tests.
func wait(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), supervisortest.Wait)
	t.Cleanup(cancel)
	return ctx
}

type mapSeen struct {
	Revision uint64 `json:"revision"`
	States   string `json:"states"`
}

// TestBrowserShowsMapAndApproves: a browser logs in with a token that lofamoctl signs, shows the map and every change, and approves a
// response if its subject may.
func TestBrowserShowsMapAndApproves(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Web: true,
		Configure: func(cfg *config.Supervisor) { cfg.Responses.Grace, cfg.Responses.StormDelay = 0, 0 }})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t, 0)
	s := newSite(t, "http://"+cfg.Web.Listen)
	t.Run("strangers", func(t *testing.T) { strangers(t, c, s.url) })
	applyReseat(t, c, cfg.GRPC)
	s.loginAs(c, pki.RoleApprover)
	var m mapSeen
	s.want(http.StatusOK, http.MethodGet, "/api/map", nil, &m)
	if len(m.States) != c.Dims.Nodes() || m.Revision == 0 {
		t.Fatalf("%+v: want %d states", m, c.Dims.Nodes())
	}
	_, next := s.stream(m.Revision)
	next("alive", func(data string) bool { return strings.Contains(data, `"leader":"s1","stale":false`) })
	a := c.Agents["n1-0-0"]
	observed := []fault.Observation{{Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindSelf},
		{Component: fault.ComponentMemory, State: fault.Failed, Kind: fault.KindSelf}}
	id, b := a.Report(t, fault.HalfHost, false, observed...)
	a.Deliver(t, id, b, cfg.Report)
	periods, err := cfg.Timing()
	if err != nil {
		t.Fatal(err)
	}
	defer supervisortest.Every(periods.DigestPeriod/2, func() { // its fault lasts
		_, b := a.Report(t, fault.HalfHost, true, observed...)
		a.Send(t, cfg.Report, b)
	})()
	next("changes", func(data string) bool {
		return strings.Contains(data, `"node":"n1-0-0","at":"1,0,0","part":"memory"`) && strings.Contains(data, `"to":"FAILED"`)
	})
	response := ""
	next("responses", func(data string) bool {
		var r struct {
			Responses []struct{ ID, Reason string }
		}
		if err := json.Unmarshal([]byte(data), &r); err != nil {
			t.Fatal(err)
		}
		for _, r := range r.Responses {
			if r.Reason == "approval" {
				response = r.ID
			}
		}
		return response != ""
	})
	var page struct {
		Node  struct{ ID string }
		Words []watchdog.Word
	}
	s.want(http.StatusOK, http.MethodGet, "/api/node?node=1,0,0", nil, &page)
	if page.Node.ID != "n1-0-0" || len(page.Words) != 3 || page.Words[1].Fields[2].Name != "Memory" {
		t.Errorf("%+v: want the node, and its three words by field", page)
	}
	for _, q := range []string{"/api/explain?node=n1-0-0&component=memory", "/api/history?node=1,0,0", "/api/events", "/api/groups",
		"/api/responses?all=1"} {
		if got := s.do(http.MethodGet, q, nil, nil); got.code != http.StatusOK || !json.Valid(got.body) {
			t.Errorf("%s: %d: %.200s", q, got.code, got.body)
		}
	}
	for _, q := range []string{"/api/node?node=9,9,9", "/api/events?limit=99999", "/api/stream?after=x"} {
		s.want(http.StatusBadRequest, http.MethodGet, q, nil, nil)
	}
	// A revision of another store.
	_, ahead := s.stream(m.Revision + 1_000_000)
	ahead("reset", func(string) bool { return true })
	viewer := newSite(t, s.url)
	viewer.loginAs(c, pki.RoleViewer)
	viewer.want(http.StatusForbidden, http.MethodPost, "/api/responses/"+response+"/approve", map[string]string{"reason": ""}, nil)
	viewer.want(http.StatusForbidden, http.MethodPost, "/api/responses/"+response+"/deny", map[string]string{"reason": "no"}, nil)
	crossed := s.do(http.MethodPost, "/api/responses/"+response+"/approve", map[string]string{"reason": ""},
		func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
	if crossed.code != http.StatusForbidden {
		t.Errorf("an approval from another site: %d", crossed.code)
	}
	s.want(http.StatusOK, http.MethodPost, "/api/responses/"+response+"/approve", map[string]string{"reason": "tried"}, nil)
	next("responses", func(data string) bool { return strings.Contains(data, `"subject":"approver/someone"`) })
	t.Run("many", func(t *testing.T) { manyStreams(t, c, s.url, m.Revision) })
	t.Run("handover", func(t *testing.T) { handover(t, c) })
}

// strangers get no data, and learn how to log in.
func strangers(t *testing.T, c *supervisortest.Cluster, url string) {
	s := newSite(t, url)
	for _, path := range []string{"/api/session", "/api/map", "/api/stream?after=1", "/api/node?node=0,0,0"} {
		s.want(http.StatusUnauthorized, http.MethodGet, path, nil, nil)
	}
	s.want(http.StatusNotFound, http.MethodGet, "/api/else", nil, nil)
	s.want(http.StatusBadRequest, http.MethodPost, "/api/login", map[string]string{"more": "x"}, nil)
	if s.login("a.b.c") {
		t.Error("a token of nobody is taken")
	}
	token, err := pki.NewWebLogin(signer(t, c, "viewer"), "s1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	form := s.do(http.MethodPost, "/api/login", map[string]string{"token": token},
		func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") })
	if form.code != http.StatusBadRequest {
		t.Errorf("what a form could send: %d", form.code)
	}
	if !s.login(token) || s.login(token) {
		t.Error("a login works other than once")
	}
	if k := s.cookie; !k.HttpOnly || k.SameSite != http.SameSiteStrictMode || k.MaxAge <= 0 || k.MaxAge > 8*3600 {
		t.Errorf("cookie %v", k)
	}
	s.cookie = &http.Cookie{Name: s.cookie.Name, Value: token}
	s.want(http.StatusUnauthorized, http.MethodGet, "/api/session", nil, nil) // a login is no session
	if csp := s.do(http.MethodGet, "/", nil, nil).header.Get("Content-Security-Policy"); !strings.Contains(csp, "script-src 'self';") ||
		strings.Contains(csp, "unsafe") {
		t.Errorf("Content-Security-Policy: %s", csp)
	}
}

// manyStreams: a subject's streams are limited, and closed streams free their places.
func manyStreams(t *testing.T, c *supervisortest.Cluster, url string, after uint64) {
	s := newSite(t, url)
	s.loginAs(c, pki.RoleOperator)
	open := 0
	for ; open < 1000; open++ {
		if code, _ := s.stream(after); code != http.StatusOK {
			break
		}
	}
	if open != 16 {
		t.Errorf("%d streams of one subject: want 16", open)
	}
}

// handover: a visitor logged in at one replica is admitted at another without a new login, once, and nowhere else.
func handover(t *testing.T, c *supervisortest.Cluster) {
	conn := c.Conn(t, pki.RoleSupervisor, c.Configs[0].GRPC)
	verify, err := pki.LoadVerifier(filepath.Join(c.Dir, "ca.pem"), supervisortest.Name)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]*site{}
	for _, id := range []string{"s1", "s2"} {
		srv := web.New(web.Config{
			Self: id, Cluster: supervisortest.Name, Faults: lofamov1.NewFaultSupervisorClient(conn),
			Responses: lofamov1.NewResponseServiceClient(conn),
			Masks:     lofamov1.NewReconfigureClient(conn), Signer: signer(t, c, "s1"), Verifier: verify, Session: time.Hour, Cookie: "test",
			Peers: func() []web.Peer { return []web.Peer{{ID: "s2", URL: "http://127.0.0.1:1"}} },
		})
		h := httptest.NewServer(srv)
		t.Cleanup(h.Close)
		t.Cleanup(srv.Close)
		pages[id] = newSite(t, h.URL)
	}
	pages["s1"].loginAs(c, pki.RoleViewer)
	var session struct {
		Subject string
		Expires int64
		Others  []struct{ ID, URL, Token string }
	}
	pages["s1"].want(http.StatusOK, http.MethodGet, "/api/session", nil, &session)
	if len(session.Others) != 1 || session.Others[0].ID != "s2" {
		t.Fatalf("%+v", session)
	}
	token := session.Others[0].Token
	if pages["s1"].login(token) {
		t.Error("a handover to s2 is taken by s1")
	}
	if !pages["s2"].login(token) || pages["s2"].login(token) {
		t.Error("a handover works other than once")
	}
	was := session
	pages["s2"].want(http.StatusOK, http.MethodGet, "/api/session", nil, &session)
	if session.Subject != "viewer/someone" || session.Expires > was.Expires {
		t.Errorf("%+v after %+v: want the same subject, and no longer", session, was)
	}
}

// TestUsedLoginStaysUsedAcrossRestart: a login works once, even if the supervisor restarts before it expires.
func TestUsedLoginStaysUsedAcrossRestart(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Web: true})
	cfg := c.Configs[0]
	sup := start(t, cfg)
	token, err := pki.NewWebLogin(signer(t, c, string(pki.RoleViewer)), "s1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if s := newSite(t, "http://"+cfg.Web.Listen); !s.login(token) || s.login(token) {
		t.Fatal("a login works other than once")
	}
	stop(t, sup)
	start(t, cfg)
	s := newSite(t, "http://"+cfg.Web.Listen)
	if s.login(token) {
		t.Error("a login works once more after a restart")
	}
	s.loginAs(c, pki.RoleViewer)
}

// TestReplicaMakesItsWebCertificate: a replica without a certificate for browsers makes one, keeps it, and vouches for it with its
// own key.
func TestReplicaMakesItsWebCertificate(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Web: true, Configure: func(cfg *config.Supervisor) { cfg.Web.Plain = false }})
	cfg := c.Configs[0]
	start(t, cfg)
	verify, err := pki.LoadVerifier(filepath.Join(c.Dir, "ca.pem"), supervisortest.Name)
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, "https://"+cfg.Web.Listen)
	var seen *x509.Certificate
	tr := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error { //nolint:gosec // compared below
			seen = cs.PeerCertificates[0]
			return nil
		}}}
	t.Cleanup(tr.CloseIdleConnections)
	s.client = &http.Client{Transport: tr}
	var said struct{ Token string }
	s.want(http.StatusOK, http.MethodGet, "/api/address", nil, &said)
	claims, _, err := pki.OpenWeb(verify, supervisortest.Name, "", said.Token, time.Now(), pki.WebAddress)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(seen.Raw)
	if claims.Fingerprint != hex.EncodeToString(sum[:]) || claims.Subject != "supervisor/s1" || seen.PublicKeyAlgorithm != x509.ECDSA {
		t.Errorf("it says %+v and shows %x (%v)", claims, sum, seen.PublicKeyAlgorithm)
	}
	s.loginAs(c, pki.RoleViewer)
	if !s.cookie.Secure {
		t.Error("the cookie goes over connections without TLS too")
	}
	load := func(now time.Time) string {
		t.Helper()
		_, fingerprint, err := web.Certificate("", "", cfg.DataDir, pki.SupervisorName(supervisortest.Name), seen.IPAddresses, now)
		if err != nil {
			t.Fatal(err)
		}
		return fingerprint
	}
	if load(time.Now()) != claims.Fingerprint {
		t.Error("a restart makes another certificate")
	}
	if load(time.Now().Add(380*24*time.Hour)) == claims.Fingerprint {
		t.Error("a certificate that is near its end is not made anew")
	}
	if _, _, err := web.Certificate(cfg.TLS.Cert, cfg.TLS.Key, "", "", nil, time.Now()); err == nil ||
		!strings.Contains(err.Error(), "Ed25519") {
		t.Errorf("a certificate that browsers do not know: %v", err)
	}
}
