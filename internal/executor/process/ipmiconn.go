package process

import (
	"context"
	"fmt"
	"net"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/rmcpplus"
	"github.com/bougou/go-ipmi/pkg/types"
)

// checkedBMC makes the connections of a client of a BMC. It checks what the library does not: see checkedConn.
type checkedBMC struct{}

// checked makes a client use checked connections only.
func checked(c *client.Client) *client.Client { return c.WithUDPProxy(checkedBMC{}) }

// Dial implements proxy.Dialer. The library sets deadlines on the connection; a UDP socket connects at once.
func (checkedBMC) Dial(network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	return &checkedConn{Conn: c}, nil
}

// checkedConn is a connection to a BMC that refuses a session with other algorithms than the client proposed. The library would use
// those in the answer, which proves nothing yet: somebody between the two could choose a session without integrity.
//
// Only one goroutine may use it at a time, as the library does.
type checkedConn struct {
	net.Conn

	proposed algorithms
}

// algorithms are those of a session: authentication, integrity and confidentiality.
type algorithms struct {
	auth      types.AuthAlg
	integrity types.IntegrityAlg
	crypt     types.CryptAlg
}

func (a algorithms) String() string { return fmt.Sprintf("%s, %s, %s", a.auth, a.integrity, a.crypt) }

// payload returns the payload of an RMCP+ packet (IPMI 2.0, table 13-8), or nil if b is another or incomplete packet.
func payload(b []byte) (types.PayloadType, []byte) {
	var p types.Rmcp
	if err := p.Unpack(b); err != nil || p.Session20 == nil {
		return 0, nil
	}
	return p.Session20.SessionHeader20.PayloadType, p.Session20.SessionPayload
}

// Write implements net.Conn: it records the proposal of a session.
func (c *checkedConn) Write(b []byte) (int, error) {
	if kind, p := payload(b); kind == types.PayloadTypeRmcpOpenSessionRequest {
		var req rmcpplus.OpenSessionRequest
		if err := req.Unpack(p); err != nil {
			return 0, err
		}
		c.proposed = algorithms{types.AuthAlg(req.AuthAlg), types.IntegrityAlg(req.IntegrityAlg), types.CryptAlg(req.CryptAlg)}
	}
	return c.Conn.Write(b)
}

// Read implements net.Conn: it returns an error instead of an answer that chooses other algorithms.
func (c *checkedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		return n, err
	}
	if kind, p := payload(b[:n]); kind == types.PayloadTypeRmcpOpenSessionResponse {
		var resp rmcpplus.OpenSessionResponse
		if err := resp.Unpack(p); err != nil {
			return 0, fmt.Errorf("open session: %w", err)
		}
		chosen := algorithms{types.AuthAlg(resp.AuthAlg), types.IntegrityAlg(resp.IntegrityAlg), types.CryptAlg(resp.CryptAlg)}
		if resp.RmcpStatusCode == types.RmcpStatusCodeNoErrors && chosen != c.proposed {
			return 0, fmt.Errorf("the BMC, or somebody between, answers with other algorithms (%s) than proposed (%s)", chosen, c.proposed)
		}
	}
	return n, nil
}
