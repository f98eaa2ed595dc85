package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// listeners holds the addresses of a replica.
type listeners struct {
	sockets         []*direct.Socket // by the number of the report address
	grpc, web, http net.Listener     // web and http: nil without that service
	enrolment       net.Listener     // nil: no node enrols here
}

// start occupies the addresses first, so that a conflict shows before anything is written.
func (l *listeners) start(s *Supervisor) error {
	var err error
	for _, addr := range s.cfg.Reports() {
		socket, err := direct.Listen(addr, direct.Options{
			Strangers: maxStrangers, Gather: gatherDatagrams, OnRefused: s.ingest.refused, OnFull: s.ingest.full, OnUnfiltered: func(err error) {
				s.logger.Warn("report socket: strangers are not filtered in the kernel", "address", addr, "err", err)
			},
		})
		if err != nil {
			return fmt.Errorf("report address: %w", err)
		}
		l.sockets = append(l.sockets, socket)
	}
	if l.grpc, err = s.listenTCP("grpc", s.cfg.GRPC, grpcConns); err != nil {
		return fmt.Errorf("gRPC address %s: %w", s.cfg.GRPC, err)
	}
	if s.cfg.Web.Listen != "" {
		if l.web, err = s.listenTCP("web", s.cfg.Web.Listen, webConns); err != nil {
			return fmt.Errorf("web address %s: %w", s.cfg.Web.Listen, err)
		}
	}
	if s.cfg.Enrolment.Listen != "" {
		if l.enrolment, err = s.listenTCP("enrolment", s.cfg.Enrolment.Listen, enrolConns); err != nil {
			return fmt.Errorf("enrolment address %s: %w", s.cfg.Enrolment.Listen, err)
		}
	}
	if s.cfg.HTTP == "" {
		return nil
	}
	if l.http, err = s.listenTCP("http", s.cfg.HTTP, httpConns); err != nil {
		return fmt.Errorf("HTTP address %s: %w", s.cfg.HTTP, err)
	}
	return nil
}

// stop closes all addresses. Servers may have closed their listeners already.
func (l *listeners) stop(context.Context) error {
	var errs []error
	for _, ln := range []net.Listener{l.enrolment, l.http, l.web, l.grpc} {
		if ln == nil {
			continue
		}
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, socket := range l.sockets {
		errs = append(errs, socket.Close())
	}
	return errors.Join(errs...)
}

// gatherDatagrams is how long a report socket lets datagrams gather when more than 2,000 come in a second. With one digest of
// each node in 500 ms, that is a torus of more than 3,000 nodes with three replicas.
const gatherDatagrams = time.Millisecond

// maxStrangers is the number of strangers' datagrams per second that a report socket accepts. Strangers are addresses
// that are not a node's and have no proved session; nodes whose service address is not in the topology start as
// strangers.
const maxStrangers = 1000

// Connection limits of each listener. Each connection is a descriptor that agents and replicas must not lack.
// Browsers open up to six for a page without HTTP/2, and many people may share an address. Replicas may use the gRPC
// connections that people leave.
var (
	grpcConns = bounded.Limits{All: 2048, PerSource: 256, PerSubject: 256, Subjects: 1536, Handshakes: 200}
	webConns  = bounded.Limits{All: 512, PerSource: 128, PerSubject: 64, Subjects: 384}
	httpConns = bounded.Limits{All: 128, PerSource: 32}
	// Nodes that enrol have no certificate that could be a subject. They try again.
	enrolConns = bounded.Limits{All: 512, PerSource: 256}
)

// listenTCP listens at an address, with limits, and counts closed connections under the given name.
func (s *Supervisor) listenTCP(name, addr string, limits bounded.Limits) (net.Listener, error) {
	l, err := bounded.ListenTCP(addr, bounded.Options{Limits: limits, Log: s.logger,
		Dropped: func(reason string) { s.metrics.Closed.WithLabelValues(name, reason).Inc() }})
	if err != nil {
		return nil, err // not l: a nil *bounded.Listener would make a net.Listener that is not nil
	}
	return l, nil
}
