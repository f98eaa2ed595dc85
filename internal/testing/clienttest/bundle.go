package clienttest

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Bundle is a replica's answer to GetBundle: the responses, then the error. A failed transfer is marked so, unlike one
// that the replica's own failure cuts off.
type Bundle struct {
	Responses []*lofamov1.GetBundleResponse
	Err       error
	Failed    bool // the transfer has
	Asked     *lofamov1.GetBundleRequest
}

// ServeBundle sets the answer to every GetBundle; Asked becomes the last request.
func (s *Server) ServeBundle(b *Bundle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bundle = b
}

// GetBundle answers with the configured bundle.
func (s *Server) GetBundle(req *lofamov1.GetBundleRequest, stream grpc.ServerStreamingServer[lofamov1.GetBundleResponse]) error {
	s.mu.Lock()
	b, err := s.bundle, s.refuse
	if b != nil {
		b.Asked = req
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if b == nil { // never begins
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	for _, r := range b.Responses {
		if err := stream.Send(r); err != nil {
			return err
		}
	}
	if b.Failed {
		stream.SetTrailer(metadata.Pairs("lofamo-outcome", "failed"))
	}
	return b.Err
}
