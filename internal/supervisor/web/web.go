// Package web serves one replica's fault map to browsers: an embedded page, and its data as JSON over HTTP and as
// server-sent events.
//
//	GET  /                        the page and its parts; they come from nowhere else
//	POST /api/login               a web token (internal/pki) becomes a cookie
//	POST /api/logout              ends the session of this browser
//	GET  /api/session             who is logged in, what that one may do, and the other replicas, each with a handover
//	GET  /api/map                 the whole map, one character a node and link end
//	GET  /api/stream?after=R      every change after revision R, the incidents and the responses (server-sent events)
//	GET  /api/node, explain, history, events, groups, responses
//	GET  /api/incidents           incidents, those included that are closed
//	POST /api/responses/ID/approve|deny
//	POST /api/incidents/ID/acknowledge
//	GET  /runbooks/ALERT          what to do about an alert, for everybody
//
// It uses the gRPC API of its own replica, like any other client. It has neither a copy of the map nor any
// rights: it names the subject of each call, as a replica does that forwards a call. So no browser can delay a decision about
// faults: a stream that its browser does not read fills its own buffers and is ended.
package web

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
)

// Peer is another replica with a page.
type Peer struct {
	ID  string `json:"id"`
	URL string `json:"url"` // of its page, "https://host:port"
}

// Config of the page.
type Config struct {
	Self, Cluster string // ids of the replica and of the cluster
	// Faults and Responses are this replica's own API, called with its own certificate.
	Faults    lofamov1.FaultSupervisorClient
	Responses lofamov1.ResponseServiceClient
	Signer    *pki.Signer                // of sessions
	Verifier  *pki.Verifier              // of logins, and of sessions from other replicas
	Masks     lofamov1.ReconfigureClient // only to list the masks
	// Peers returns the other replicas with pages; nil: there are none.
	Peers   func() []Peer
	Session time.Duration // life of a session
	// QuorumAge returns the time since this replica last reached a quorum: its list of revoked certificates may be that old. -1: never since
	// it started; nil: it reaches one all the time.
	QuorumAge func() time.Duration
	// Used is the file of used logins; empty: they are remembered until the process ends.
	Used string
	// Secure: the page is served by TLS, and browsers send its cookie over TLS only.
	Secure bool
	// Cookie is the cookie's name. It distinguishes clusters that share a host, because cookies ignore ports.
	Cookie string
	// Fingerprint of the certificate that browsers see, SHA-256 in hexadecimal; empty without TLS.
	Fingerprint string
	Files       fs.FS // the page; nil: the one that is embedded
	Logger      *slog.Logger
	Now         func() time.Time // nil: time.Now
	// Alive is the interval of a stream's status messages in the absence of others; 0 stands for 2 s. The page
	// considers a stream lost after three silent intervals.
	Alive time.Duration
}

// Limits on browsers' use of a replica.
const (
	maxStreams        = 128 // open streams, of all users
	maxStreamsSubject = 16  // streams of one subject: tabs
	maxCalls          = 32  // other requests in progress
	maxBody           = 8 << 10
	writeTime         = 10 * time.Second // for a browser to accept a write before its stream ends
	callTime          = 10 * time.Second // of a question to the API
)

// Server answers browsers. Run must run beside it.
type Server struct {
	cfg       Config
	handler   http.Handler
	calls     chan struct{}
	used      *usedTokens
	streams   streams
	wholeMap  snapshot
	allGroups snapshot
	stopping  context.Context // ends every stream
	stop      context.CancelFunc
}

// New returns the page's server.
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Alive == 0 {
		cfg.Alive = 2 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Files == nil {
		cfg.Files = embedded()
	}
	s := &Server{cfg: cfg, calls: make(chan struct{}, maxCalls)}
	var err error
	if s.used, err = openUsed(cfg.Used, cfg.Now()); err != nil {
		cfg.Logger.Warn("web: logins are refused for minutes, because some may already have been used", "err", err)
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.handler = s.routes()
	return s
}

// Close ends the streams: a server that is shut down waits for them.
func (s *Server) Close() { s.stop() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/login", s.login)
	mux.HandleFunc("POST /api/logout", s.logout)
	mux.HandleFunc("GET "+addressPath, s.address)
	mux.HandleFunc("GET /api/session", s.as(s.session))
	mux.HandleFunc("GET /api/map", s.as(s.serveMap))
	mux.HandleFunc("GET /api/stream", s.as(s.stream))
	mux.HandleFunc("GET /api/node", s.as(s.node))
	mux.HandleFunc("GET /api/explain", s.as(s.explain))
	mux.HandleFunc("GET /api/history", s.as(s.history))
	mux.HandleFunc("GET /api/events", s.as(s.events))
	mux.HandleFunc("GET /api/groups", s.as(s.groups))
	mux.HandleFunc("GET /api/responses", s.as(s.responses))
	mux.HandleFunc("GET /api/incidents", s.as(s.incidents))
	mux.HandleFunc("POST /api/incidents/{id}/acknowledge", s.as(s.acknowledge))
	mux.HandleFunc("POST /api/responses/{id}/approve", s.as(s.approve))
	mux.HandleFunc("POST /api/responses/{id}/deny", s.as(s.deny))
	mux.HandleFunc("/api/", func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusNotFound, "there is nothing here") })
	mux.HandleFunc("GET "+runbooksPath+"{name...}", runbook)
	mux.Handle("/", pages(s.cfg.Files))
	// Logged-in users may visit another site, whose scripts must not act in their name. The browser does not send the
	// cookie from there (SameSite=Strict). In addition, requests with effects are refused if the browser names a
	// foreign origin.
	return s.headers(http.NewCrossOriginProtection().Handler(mux))
}

// headers sets the headers of every response: nothing comes from elsewhere, only our own script files run, and no
// site frames the page. The page may only check whether another replica answers, which reveals nothing else
// (api/address is signed and public).
func (s *Server) headers(next http.Handler) http.Handler {
	csp := "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'" + s.origins() +
		"; font-src 'self'; manifest-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", csp)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if r.URL.Path == addressPath {
			h.Set("Cross-Origin-Resource-Policy", "cross-origin")
		}
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		if strings.HasPrefix(r.URL.Path, "/api/") {
			h.Set("Cache-Control", "no-store")
		}
		next.ServeHTTP(w, r)
	})
}

// addressPath is the path at which a page checks whether another replica is reachable.
const addressPath = "/api/address"

// origins returns the origins of the other replicas' pages for the Content-Security-Policy, each after a space.
// IPv6 addresses are not permitted there.
func (s *Server) origins() (out string) {
	if s.cfg.Peers == nil {
		return ""
	}
	for _, p := range s.cfg.Peers() {
		if u, err := url.Parse(p.URL); err == nil && !strings.ContainsAny(u.Host, "[;,' ") {
			out += " " + u.Scheme + "://" + u.Host + addressPath
		}
	}
	return out
}

// refuse answers with words for people.
func refuse(w http.ResponseWriter, code int, why string) {
	reply(w, code, struct {
		Error string `json:"error"`
	}{why})
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the browser may have disconnected
}

// limited bounds a question to the API, in time and in number. release is nil when there are too many.
func (s *Server) limited(r *http.Request) (ctx context.Context, release func()) {
	select {
	case s.calls <- struct{}{}:
	default:
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), callTime)
	return ctx, func() { cancel(); <-s.calls }
}

// speak names the subject of the call to the API.
func speak(ctx context.Context, who visitor) context.Context {
	return metadata.AppendToOutgoingContext(ctx, api.SubjectKey, who.Subject)
}

// encoding omits zero values. That loses nothing: states are never 0.
var encoding = protojson.MarshalOptions{}

// ask is the common part of handlers: one question to the API, answered with its message.
func ask[R proto.Message](s *Server, w http.ResponseWriter, r *http.Request, who visitor, call func(context.Context) (R, error)) {
	s.answer(w, r, who, func(ctx context.Context) ([]byte, error) {
		resp, err := call(ctx)
		if err != nil {
			return nil, err
		}
		return encoding.Marshal(resp)
	})
}

// answer sends the API's answer as JSON.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, who visitor, call func(context.Context) ([]byte, error)) {
	ctx, release := s.limited(r)
	if release == nil {
		busy(w)
		return
	}
	defer release()
	b, err := call(speak(ctx, who))
	if err != nil {
		s.failed(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	write(w, r, b)
}

func busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	refuse(w, http.StatusServiceUnavailable, "too many questions at once: try again in a second")
}

// failed sends the API's error.
func (s *Server) failed(w http.ResponseWriter, err error) {
	st, _ := status.FromError(err)
	code, ok := map[codes.Code]int{
		codes.InvalidArgument: http.StatusBadRequest, codes.NotFound: http.StatusNotFound, codes.PermissionDenied: http.StatusForbidden,
		codes.OutOfRange: http.StatusGone,
		codes.Aborted:    http.StatusConflict, codes.FailedPrecondition: http.StatusConflict, codes.Unimplemented: http.StatusNotImplemented,
		codes.Unavailable: http.StatusServiceUnavailable, codes.ResourceExhausted: http.StatusServiceUnavailable,
		codes.DeadlineExceeded: http.StatusGatewayTimeout,
	}[st.Code()]
	if !ok {
		code = http.StatusInternalServerError
		if !errors.Is(err, context.Canceled) && st.Code() != codes.Canceled {
			s.cfg.Logger.Warn("web: a question failed", "err", err)
		}
	}
	refuse(w, code, st.Message())
}
