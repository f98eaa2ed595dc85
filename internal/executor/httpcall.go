package executor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/fault"
)

// HTTPCaller posts to one external server, which may be slow, faulty or hostile. It connects only to addresses that the
// configuration allows, follows no redirects, ignores proxies in the environment and bounds the size of answers. Each
// failure says whether the request may have left.
//
// HTTPCaller keeps no state between calls: each call reads the certificates and resolves the name
// again. No connection is used twice, because the other side may just have closed it, which would make the outcome
// unknown.
type HTTPCaller struct {
	url     string
	allow   func(netip.Addr) error
	tls     config.ClientTLS
	timeout time.Duration
}

// NewHTTPCaller returns a caller for one server whose calls take at most timeout each. allow returns an error for an address that
// the caller must not connect to; a nil allow permits all. NewHTTPCaller reads the configured files once, to report errors in
// them before the first call.
func NewHTTPCaller(url string, tls config.ClientTLS, timeout time.Duration, allow func(netip.Addr) error) (*HTTPCaller, error) {
	c := &HTTPCaller{url, allow, tls, timeout}
	_, err := clientTLS(tls)
	return c, err
}

// RunAttempt runs do if the guard admits the job's attempt, with the job's timeout.
func RunAttempt(ctx context.Context, guard *Guard, j Job, do func(ctx context.Context) Result) Result {
	if r, ok := guard.Admit(j.Effect); !ok {
		return r
	}
	failpoint.Hit(failpoint.CallAdmitted)
	if j.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, j.Timeout)
		defer cancel()
	}
	r := do(ctx)
	failpoint.Hit(failpoint.CallEnded)
	return r
}

// Limits for answers.
const (
	MaxHTTPAnswer = 64 << 10 // bytes of a body
	maxHeaders    = 16 << 10 // bytes
	maxName       = 200      // bytes of an error that quotes the other side
)

// HTTPAnswer is a server's response.
type HTTPAnswer struct {
	Status int
	Header http.Header
	Body   []byte
	// Cut says why Body is only the beginning of the body; nil: Body is complete.
	Cut error
}

// HTTPError is the error of a call without an answer.
type HTTPError struct {
	// Left is true if any part of the request may have reached the server.
	Left bool
	Err  error
}

func (e *HTTPError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *HTTPError) Unwrap() error { return e.Err }

// Post sends a body once and returns the answer, whatever its status, or an *HTTPError. An answer whose body is too long, too late or
// broken is an answer too, with Cut. If sent is not nil, Post calls it after the body has left and before the answer arrives.
func (c *HTTPCaller) Post(ctx context.Context, header http.Header, body []byte, sent func()) (HTTPAnswer, error) {
	late := fmt.Errorf("no answer within %s", c.timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, late)
	defer cancel()
	// The error names the deadline that has passed: the call's, after which the caller may retry, or the attempt's.
	said := func(err error) error {
		switch {
		case errors.Is(context.Cause(ctx), late):
			return late
		case strings.Contains(err.Error(), "malformed HTTP"): // it quotes what another service says of itself
			return errors.New("the answer is not HTTP")
		}
		return briefly(err)
	}
	t, err := c.transport()
	if err != nil {
		return HTTPAnswer{}, &HTTPError{Err: err}
	}
	defer t.CloseIdleConnections()
	// Bytes of the request can leave once there is a connection, with TLS established, and not earlier.
	var left atomic.Bool
	trace := &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { left.Store(true) },
		WroteRequest: func(i httptrace.WroteRequestInfo) {
			if i.Err == nil && sent != nil {
				sent()
			}
		},
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return HTTPAnswer{}, &HTTPError{Err: err}
	}
	req.Header = header.Clone()
	// Use the transport, not an http.Client, which would follow redirects.
	resp, err := t.RoundTrip(req)
	if err != nil {
		return HTTPAnswer{}, &HTTPError{left.Load(), said(err)}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxHTTPAnswer+1))
	if err == nil && len(b) > MaxHTTPAnswer {
		err = fmt.Errorf("the answer is longer than %d bytes", MaxHTTPAnswer)
	}
	a := HTTPAnswer{Status: resp.StatusCode, Header: resp.Header, Body: b[:min(len(b), MaxHTTPAnswer)]}
	if err != nil {
		a.Cut = fmt.Errorf("status %d: %w", resp.StatusCode, said(err))
	}
	return a, nil
}

func (c *HTTPCaller) transport() (*http.Transport, error) {
	t, err := clientTLS(c.tls)
	if err != nil {
		return nil, err
	}
	d := &net.Dialer{
		FallbackDelay: -1, // one connection at a time, so that a refused call is refused once
		// Check the address at connection time, since a name may resolve differently on a second look-up.
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			if c.allow == nil {
				return nil
			}
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("address %q: %w", address, err)
			}
			return c.allow(ap.Addr())
		},
	}
	return &http.Transport{
		DialContext:            d.DialContext,
		TLSClientConfig:        t,
		DisableKeepAlives:      true,
		DisableCompression:     true, // a small compressed body may be large here
		MaxResponseHeaderBytes: maxHeaders,
		Protocols:              http1(),
	}, nil
}

// http1 allows HTTP/1 only: one connection carries one request.
func http1() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	return &p
}

// clientTLS loads the files of a client's TLS configuration.
func clientTLS(c config.ClientTLS) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CA != "" {
		b, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("certificate authorities: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("certificate authorities %s: no PEM certificate", c.CA)
		}
	}
	if c.Cert != "" {
		cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		t.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

// briefly shortens an error that may quote the other side. The error still matches errors.Is and errors.As.
func briefly(err error) error {
	if s := err.Error(); len(s) > maxName {
		return &briefError{fault.Cut(s, maxName) + "…", err}
	}
	return err
}

type briefError struct {
	text string
	err  error
}

func (e *briefError) Error() string { return e.text }
func (e *briefError) Unwrap() error { return e.err }

// MayHaveLeft reports whether the request of a failed call may have reached its server.
func MayHaveLeft(err error) bool {
	var e *HTTPError
	return !errors.As(err, &e) || e.Left
}
