package supervisor

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/web"
)

// webMessage bounds a message from the API to the page's server: the brief list of 100,000 nodes.
const webMessage = 64 << 20

// start serves the page for browsers, unless the configuration has no web address. The page calls this replica's API like
// any client, over its own connection.
func (p *webPart) start(s *Supervisor) error {
	if s.listeners.web == nil {
		return nil
	}
	c := s.cfg.Web.Filled()
	conf, err := s.peerTLS(s.cfg.ID)
	if err != nil {
		return err
	}
	p.conn, err = grpc.NewClient(ownAddress(s.listeners.grpc, s.self.GRPC), grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithNoProxy(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(webMessage)))
	if err != nil {
		return fmt.Errorf("connection of the page to this replica: %w", err)
	}
	ca, err := os.ReadFile(s.cfg.TLS.CA)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(ca)
	cfg := web.Config{
		Self: s.cfg.ID, Cluster: s.cfg.Cluster, Faults: lofamov1.NewFaultSupervisorClient(p.conn),
		Responses: lofamov1.NewResponseServiceClient(p.conn),
		Masks:     lofamov1.NewReconfigureClient(p.conn), Signer: s.signer, Verifier: s.verify, Peers: s.webPeers, Session: c.Session.D(),
		QuorumAge: s.engine.ready.quorumAge,
		Secure:    !c.Plain, Used: filepath.Join(s.cfg.DataDir, "web-used.json"),
		Cookie: "lofamo-" + hex.EncodeToString(sum[:4]), Logger: s.logger,
	}
	var serving *tls.Config
	if !c.Plain {
		cert, fingerprint, err := web.Certificate(c.Cert, c.Key, s.cfg.DataDir, pki.SupervisorName(s.cfg.Cluster), s.webIPs(), time.Now())
		if err != nil {
			return err
		}
		cfg.Fingerprint = fingerprint
		serving = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}}
	}
	p.page = web.New(cfg)
	srv := bounded.HTTPServer(p.page)
	srv.TLSConfig = serving
	srv.ReadTimeout = 0                                                   // it would end streams; reading a body has its own deadline
	srv.ErrorLog = slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug) // browsers may not trust the certificate yet
	p.server, p.served = srv, make(chan struct{})
	go func() {
		defer close(p.served)
		serve := srv.Serve
		if serving != nil {
			serve = func(ln net.Listener) error { return srv.ServeTLS(ln, "", "") }
		}
		if err := serve(s.listeners.web); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("web page on %s: %w", c.Listen, err))
		}
	}()
	if !web.Built() {
		s.logger.Debug("the page for browsers is not part of this build: it shows only a notice", "web", c.Listen)
	}
	return nil
}

// stop ends the page's streams and its connection.
func (p *webPart) stop(ctx context.Context) error {
	var errs []error
	if p.server != nil {
		p.page.Close()
		err := p.server.Shutdown(ctx)
		if err != nil {
			err = p.server.Close() // a browser that keeps its connection busy does not delay the stop
		}
		<-p.served
		errs = append(errs, err)
	}
	if p.conn != nil {
		errs = append(errs, p.conn.Close())
	}
	return errors.Join(errs...)
}

// ownAddress returns the address at which this replica reaches itself: on this machine, if it listens on all
// addresses.
func ownAddress(ln net.Listener, other string) string {
	addr, err := netip.ParseAddrPort(ln.Addr().String())
	if err != nil || addr.Addr().IsUnspecified() {
		return other
	}
	return addr.String()
}

// webPeers returns the other replicas' pages.
func (s *Supervisor) webPeers() []web.Peer {
	var out []web.Peer
	for _, r := range s.cfg.Replicas {
		if r.ID != s.cfg.ID && r.Web != "" {
			out = append(out, web.Peer{ID: r.ID, URL: strings.TrimSuffix(r.Web, "/")})
		}
	}
	return out
}

// webIPs returns the addresses by which browsers may know this replica.
func (s *Supervisor) webIPs() []net.IP {
	var out []net.IP
	for _, addr := range []string{s.cfg.Web.Listen, s.self.GRPC} {
		host, _, err := net.SplitHostPort(addr)
		if ip := net.ParseIP(host); err == nil && ip != nil && !ip.IsUnspecified() {
			out = append(out, ip)
		}
	}
	return out
}
