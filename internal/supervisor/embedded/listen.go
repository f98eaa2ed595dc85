package embedded

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/lofamo/lofamo/internal/bounded"
)

// etcd's own listeners do not limit connections, and embed.Config accepts no other listener. So embed.Config has
// no address to listen on, and this package serves etcd's handlers on bounded listeners, with etcd's TLS
// configuration.

// Limits of each of the two listeners. Connections of members and clients, which are all supervisors, count only towards the total.
const (
	maxConns     = 512
	maxPerSource = 64 // connections of one source that have not proved to be a supervisor's
)

// Time-outs of the listeners. etcd closes a connection to a member that accepts no data for writeTime; a snapshot
// may take readTime.
const (
	handshakeTime = 5 * time.Second // and for an HTTP header
	readTime      = 5 * time.Minute
	idleTime      = time.Minute
	writeTime     = 5 * time.Second
)

// maxHeader limits a request's header, in bytes.
const maxHeader = 16 << 10

// Names of the listeners, for Config.Closed.
const (
	ListenerPeers   = "etcd-peer"
	ListenerClients = "etcd-client"
)

// front holds the member's listeners and their servers.
type front struct {
	peers, clients *bounded.Listener // clients is nil without Config.ClientURL
	peerTLS        *tls.Config
	clientTLS      *tls.Config
	http           *http.Server // of peers
	grpc           *grpc.Server // of clients
	serving        sync.WaitGroup
}

// listen binds the addresses, so that an address in use is found before the store starts. It removes them from etcd's configuration.
func listen(cfg Config, ec *embed.Config) (_ *front, err error) {
	f := new(front)
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.peerTLS, err = serverTLS(ec.PeerTLSInfo, cfg.Verify); err != nil {
		return nil, fmt.Errorf("etcd.peerURL: %w", err)
	}
	if f.clientTLS, err = serverTLS(ec.ClientTLSInfo, cfg.Verify); err != nil {
		return nil, fmt.Errorf("etcd.clientURL: %w", err)
	}
	if f.peers, err = bind(ec.ListenPeerUrls[0].Host, ListenerPeers, cfg); err != nil {
		return nil, fmt.Errorf("etcd.peerURL: given %q: %w", cfg.PeerURL, err)
	}
	if len(ec.ListenClientUrls) > 0 {
		if f.clients, err = bind(ec.ListenClientUrls[0].Host, ListenerClients, cfg); err != nil {
			return nil, fmt.Errorf("etcd.clientURL: given %q: %w", cfg.ClientURL, err)
		}
	}
	ec.ListenPeerUrls, ec.ListenClientUrls = nil, nil
	return f, nil
}

func bind(addr, name string, cfg Config) (*bounded.Listener, error) {
	o := bounded.Options{Limits: bounded.Limits{All: maxConns, PerSource: maxPerSource}, Log: cfg.Logger}
	if cfg.Closed != nil {
		o.Dropped = func(reason string) { cfg.Closed(name, reason) }
	}
	return bounded.ListenTCP(addr, o)
}

// serverTLS is etcd's configuration for a listener, which reads a renewed certificate from the files.
func serverTLS(info transport.TLSInfo, verify func(tls.ConnectionState) error) (*tls.Config, error) {
	conf, err := info.ServerConfig()
	if err != nil {
		return nil, err
	}
	conf.MinVersion, conf.VerifyConnection = tls.VersionTLS13, verify
	return conf, nil
}

// serve serves peers at once and clients when the member is ready. failed receives an error that ends a listener.
func (f *front) serve(e *embed.Etcd, ec *embed.Config, failed func(error)) {
	f.http = &http.Server{
		Handler:           etcdhttp.NewPeerHandler(e.GetLogger(), e.Server),
		ReadHeaderTimeout: handshakeTime, ReadTimeout: readTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ConnState: bounded.HTTPState, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // peers speak HTTP/1.1
	}
	conf := f.peerTLS.Clone()
	conf.NextProtos = nil
	conf.GetConfigForClient = admitMembers(conf.Clone())
	f.serving.Go(func() {
		if err := f.http.Serve(tls.NewListener(hurried{f.peers}, conf)); !errors.Is(err, http.ErrServerClosed) {
			failed(fmt.Errorf("serve etcd's peers: %w", err))
		}
	})
	if f.clients == nil {
		return
	}
	opts := append([]grpc.ServerOption{
		grpc.Creds(bounded.Credentials(f.clientTLS, func(tls.ConnectionState) string { return "" })),
		grpc.ConnectionTimeout(handshakeTime), grpc.MaxHeaderListSize(maxHeader),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: ec.GRPCKeepAliveMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: ec.GRPCKeepAliveInterval, Timeout: ec.GRPCKeepAliveTimeout}),
	}, ec.GRPCAdditionalServerOptions...)
	f.grpc = v3rpc.Server(e.Server, nil, nil, opts...)
	f.serving.Go(func() {
		select {
		case <-e.Server.ReadyNotify():
		case <-e.Server.StoppingNotify():
			return
		}
		if err := f.grpc.Serve(f.clients); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			failed(fmt.Errorf("serve etcd's clients: %w", err))
		}
	})
}

// stopClients ends the calls of clients, before the member stops.
func (f *front) stopClients() {
	if f.grpc != nil {
		f.grpc.Stop()
	}
}

// close closes the listeners and the connections of peers, after the member has stopped.
func (f *front) close() {
	f.stopClients()
	if f.http != nil {
		_ = f.http.Close()
	}
	for _, l := range []*bounded.Listener{f.peers, f.clients} {
		if l != nil {
			_ = l.Close()
		}
	}
	f.serving.Wait()
}

// admitMembers returns a tls.Config's GetConfigForClient: besides passing conf's checks, a member has to connect from
// an address in its certificate. Its connection is then never closed to make room for another one, and ends with its certificate.
func admitMembers(conf *tls.Config) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := conf.Clone()
		c.VerifyConnection = func(state tls.ConnectionState) error {
			if conf.VerifyConnection != nil {
				if err := conf.VerifyConnection(state); err != nil {
					return err
				}
			}
			if err := checkAddress(hello.Context(), state.PeerCertificates[0], hello.Conn.RemoteAddr()); err != nil {
				return err
			}
			if b := bounded.Of(hello.Conn); b != nil {
				b.CloseAt(state.PeerCertificates[0].NotAfter)
				return b.Admit("")
			}
			return nil
		}
		return c, nil
	}
}

// checkAddress returns an error if a certificate has addresses or names and the remote address matches none. etcd's own
// listener for peers checks this too.
func checkAddress(ctx context.Context, cert *x509.Certificate, remote net.Addr) error {
	host, _, err := net.SplitHostPort(remote.String())
	if err != nil {
		return err
	}
	if len(cert.IPAddresses) == 0 && len(cert.DNSNames) == 0 || cert.VerifyHostname(host) == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	for _, name := range cert.DNSNames {
		if addrs, err := net.DefaultResolver.LookupHost(ctx, name); err == nil && slices.Contains(addrs, host) {
			return nil
		}
	}
	names, _ := net.DefaultResolver.LookupAddr(ctx, host) // no name is no match
	for _, name := range names {
		if len(cert.DNSNames) > 0 && cert.VerifyHostname(name) == nil {
			return nil
		}
	}
	return fmt.Errorf("certificate of %v and %q: comes from %s", cert.IPAddresses, cert.DNSNames, host)
}

// hurried limits every write of its connections to writeTime.
type hurried struct{ net.Listener }

// Accept implements net.Listener.
func (l hurried) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return hurriedConn{c}, nil
}

type hurriedConn struct{ net.Conn }

// NetConn returns the connection below, for bounded.Of.
func (c hurriedConn) NetConn() net.Conn { return c.Conn }

// Write implements net.Conn.
func (c hurriedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
