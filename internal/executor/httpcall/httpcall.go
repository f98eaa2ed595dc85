// Package httpcall posts to servers of other people, which may be slow, broken or worse: nothing is sent to an address that the
// configuration does not allow, no redirect is followed, no proxy of the environment is used, what is read is bounded, and of
// every failure it is known whether the request may have left.
package httpcall

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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// Caller posts to one server. It keeps nothing between two calls: certificates are read anew, names are looked up anew, and no
// connection is used twice, so that none that the other side has just closed makes an outcome unknown.
type Caller struct {
	url     string
	allow   func(netip.Addr) error
	tls     config.ClientTLS
	timeout time.Duration
}

// New returns a caller of one server, whose calls take at most timeout each. allow says why an address must not be connected to; nil
// allows all. The files of the configuration are read once here too, so that what is wrong with them is known before a call.
func New(url string, tls config.ClientTLS, timeout time.Duration, allow func(netip.Addr) error) (*Caller, error) {
	c := &Caller{url, allow, tls, timeout}
	_, err := clientTLS(tls)
	return c, err
}

// Attempt is one attempt of an executor that calls: admitted by its guard, and over with the time of the job.
func Attempt(ctx context.Context, guard *executor.Guard, j executor.Job, do func(ctx context.Context) executor.Result) executor.Result {
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

// Bounds of what is read.
const (
	MaxAnswer  = 64 << 10 // bytes of a body
	maxHeaders = 16 << 10 // bytes
	maxName    = 200      // bytes of an error that names what others have sent
)

// Answer is what a server has said.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Error is a call without an answer.
type Error struct {
	// Left says that the request, or a part of it, may have reached the server.
	Left bool
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns why.
func (e *Error) Unwrap() error { return e.Err }

// Post sends a body once, and returns the whole answer, whatever its status, or an *Error. sent, if there is one, is called when
// the body has left and the answer has not come.
func (c *Caller) Post(ctx context.Context, header http.Header, body []byte, sent func()) (Answer, error) {
	late := fmt.Errorf("no answer within %s", c.timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, late)
	defer cancel()
	// Which time is over is said: that of the call, after which another one may follow, or the attempt's.
	said := func(err error) error {
		if errors.Is(context.Cause(ctx), late) {
			return late
		}
		return brief(err)
	}
	t, err := c.transport()
	if err != nil {
		return Answer{}, &Error{Err: err}
	}
	defer t.CloseIdleConnections()
	// Bytes of the request can leave from the moment on at which there is a connection, with TLS spoken; not before.
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
		return Answer{}, &Error{Err: err}
	}
	req.Header = header.Clone()
	// The transport, and no http.Client: that would follow redirects.
	resp, err := t.RoundTrip(req)
	if err != nil {
		return Answer{}, &Error{left.Load(), said(err)}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	if err == nil && len(b) > MaxAnswer {
		err = fmt.Errorf("the answer is longer than %d bytes", MaxAnswer)
	}
	if err != nil {
		return Answer{}, &Error{true, fmt.Errorf("status %d: %w", resp.StatusCode, said(err))}
	}
	return Answer{resp.StatusCode, resp.Header, b}, nil
}

func (c *Caller) transport() (*http.Transport, error) {
	t, err := clientTLS(c.tls)
	if err != nil {
		return nil, err
	}
	d := &net.Dialer{
		FallbackDelay: -1, // one connection at a time: who is refused is refused once
		// At the moment of connecting, with the address itself: a name may lead elsewhere the second time that it is looked up.
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
		DisableCompression:     true, // what is small on the way may be large here
		MaxResponseHeaderBytes: maxHeaders,
		Protocols:              http1(),
	}, nil
}

// http1 is the only version that is spoken: one connection is one request.
func http1() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	return &p
}

// clientTLS reads the files of a client's configuration.
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

// brief bounds an error that may quote what the other side has sent. Its kind stays.
func brief(err error) error {
	if s := err.Error(); len(s) > maxName {
		return &briefError{s[:maxName] + "…", err}
	}
	return err
}

type briefError struct {
	text string
	err  error
}

func (e *briefError) Error() string { return e.text }
func (e *briefError) Unwrap() error { return e.err }

// Left says whether the request of a failed call may have reached its server.
func Left(err error) bool {
	var e *Error
	return !errors.As(err, &e) || e.Left
}
