package bounded

import (
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
)

// Credentials returns the credentials of a gRPC server on a Listener. After the handshake, a connection is admitted as the
// subject of its verified certificates; the subject "" has no limit. The connection closes when the peer's certificate
// expires: a peer with a renewed certificate connects again.
func Credentials(conf *tls.Config, subject func(tls.ConnectionState) string) credentials.TransportCredentials {
	return admitting{credentials.NewTLS(conf), subject}
}

type admitting struct {
	credentials.TransportCredentials

	subject func(tls.ConnectionState) string
}

// ServerHandshake implements credentials.TransportCredentials.
func (a admitting) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := a.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	if t, ok := info.(credentials.TLSInfo); ok {
		if c := Of(raw); c != nil {
			if err := c.Admit(a.subject(t.State)); err != nil {
				_ = conn.Close()
				return nil, nil, err
			}
			if len(t.State.PeerCertificates) > 0 {
				c.CloseAt(t.State.PeerCertificates[0].NotAfter)
			}
		}
	}
	return conn, info, nil
}

// Clone implements credentials.TransportCredentials.
func (a admitting) Clone() credentials.TransportCredentials {
	return admitting{a.TransportCredentials.Clone(), a.subject}
}
