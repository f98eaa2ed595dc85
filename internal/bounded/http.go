package bounded

import (
	"context"
	"net"
	"net/http"
	"time"
)

// Time limits of an HTTP server. A server with long answers sets its own WriteTimeout.
const (
	headerTime = 5 * time.Second // the TLS handshake, and then a request's header
	readTime   = 10 * time.Second
	writeTime  = 30 * time.Second
	idleTime   = time.Minute
	maxHeader  = 16 << 10 // bytes
)

// HTTPServer returns a server for a Listener with limits per client: 5 s for the handshake and a header, 10 s for a request,
// 30 s for its answer, 1 min between two requests, 16 KiB of header, 64 HTTP/2 streams per connection.
func HTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader,
		ConnState:      HTTPState, ConnContext: withConn, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 64, SendPingTimeout: idleTime,
			WriteByteTimeout: writeTime},
	}
}

// HTTPState is an http.Server's ConnState: it updates the standing of connections.
func HTTPState(nc net.Conn, s http.ConnState) {
	c := Of(nc)
	if c == nil {
		return
	}
	switch s {
	case http.StateActive:
		c.stand(serving)
	case http.StateIdle:
		c.stand(idle)
	default:
	}
}

type connKey struct{}

func withConn(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, Of(nc))
}

// Admit records that the sender of a request has proved its identity; see Conn.Admit.
func Admit(r *http.Request, subject string) error {
	if c, _ := r.Context().Value(connKey{}).(*Conn); c != nil {
		return c.Admit(subject)
	}
	return nil
}
