package process

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/crypto"
	"github.com/bougou/go-ipmi/pkg/rmcpplus"
	"github.com/bougou/go-ipmi/pkg/types"
)

// checkedBMC makes the connections of a client of a BMC. It checks what the library does not: see checkedConn.
type checkedBMC struct{ username, password string }

// checked makes a client use checked connections only.
func checked(c *client.Client) *client.Client {
	return c.WithUDPProxy(checkedBMC{c.Username, c.Password})
}

// Dial implements proxy.Dialer. The library sets deadlines on the connection; a UDP socket connects at once.
func (d checkedBMC) Dial(network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	return &checkedConn{Conn: c, checkedBMC: d}, nil
}

// checkedConn is a connection to a BMC with three checks that the library lacks. Otherwise somebody between the two could forge the
// answers of the BMC.
//
//   - While a session begins, it drops all packets of another type than the answer to the last request. The library would read the
//     payload of any type as that answer.
//   - It refuses a session with other algorithms than the client proposed. The library would use those in the answer. It drops late
//     answers to earlier proposals: each proposal has its own message tag, which the BMC repeats. The library always sends tag 0.
//   - In a session it drops all packets that are not encrypted, or whose code does not prove their integrity. The library sends such
//     codes, but does not look at those that it receives.
//
// Only one goroutine may use it at a time, as the library does.
type checkedConn struct {
	net.Conn
	checkedBMC

	awaited  types.PayloadType // of the next answer while a session begins; the type of IPMI messages before and after
	proposed algorithms        // zero before the first Open Session Request
	tag      uint8             // of the Open Session Requests with the proposed algorithms
	id       uint32            // of the session at the client
	random   [16]byte          // of the client, in RAKP message 1
	role     uint8             // in RAKP message 1
	key      []byte            // K1, for the codes of a session's packets; nil before RAKP message 2
}

// algorithms are those of a session: authentication, integrity and confidentiality.
type algorithms struct {
	auth      types.AuthAlg
	integrity types.IntegrityAlg
	crypt     types.CryptAlg
}

func (a algorithms) String() string { return fmt.Sprintf("%s, %s, %s", a.auth, a.integrity, a.crypt) }

// session returns an RMCP+ packet (IPMI 2.0, table 13-8), or nil if b is another or incomplete packet.
func session(b []byte) *types.Session20 {
	var p types.Rmcp
	if err := p.Unpack(b); err != nil {
		return nil
	}
	return p.Session20
}

// Write implements net.Conn: it records how the client begins a session.
func (c *checkedConn) Write(b []byte) (int, error) {
	if s := session(b); s != nil {
		var err error
		c.awaited = types.PayloadTypeIPMI
		switch s.SessionHeader20.PayloadType {
		case types.PayloadTypeRmcpOpenSessionRequest:
			c.awaited = types.PayloadTypeRmcpOpenSessionResponse
			var req rmcpplus.OpenSessionRequest
			err = req.Unpack(s.SessionPayload)
			now := algorithms{types.AuthAlg(req.AuthAlg), types.IntegrityAlg(req.IntegrityAlg), types.CryptAlg(req.CryptAlg)}
			if c.proposed != (algorithms{}) && c.proposed != now {
				c.tag++
			}
			c.proposed, c.key, c.id = now, nil, req.RemoteConsoleSessionID
			b = slices.Clone(b) // the caller's
			b[len(b)-len(s.SessionPayload)] = c.tag
		case types.PayloadTypeRAKPMessage1:
			c.awaited = types.PayloadTypeRAKPMessage2
			var req rmcpplus.RAKPMessage1
			err = req.Unpack(s.SessionPayload)
			c.random, c.role = req.RemoteConsoleRandomNumber, req.Role()
		case types.PayloadTypeRAKPMessage3:
			c.awaited = types.PayloadTypeRAKPMessage4
		default:
		}
		if err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(b)
}

// Read implements net.Conn: it returns the next packet that passes the checks, or an error for a session with other algorithms.
func (c *checkedConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil {
			return n, err
		}
		switch err := c.check(b[:n]); {
		case err == nil:
			return n, nil
		case !errors.Is(err, errDropped):
			return 0, err
		}
	}
}

// errDropped means that the library may not read a packet: somebody may have forged it, or it answers an earlier request.
var errDropped = errors.New("a packet dropped")

// check returns an error if a packet may not reach the library.
func (c *checkedConn) check(b []byte) error {
	if c.proposed == (algorithms{}) { // the answer to the question before a session, in an IPMI 1.5 packet
		return nil
	}
	s := session(b)
	if s == nil || s.SessionHeader20.PayloadType != c.awaited {
		return errDropped
	}
	switch c.awaited {
	case types.PayloadTypeRmcpOpenSessionResponse:
		return c.opened(s.SessionPayload)
	case types.PayloadTypeRAKPMessage2:
		return c.exchanged(s.SessionPayload)
	case types.PayloadTypeRAKPMessage4:
		if c.key == nil { // the library checks its code
			return errDropped
		}
	default:
		if c.key == nil || !c.proves(s, b) {
			return errDropped
		}
	}
	return nil
}

// opened returns an error if an Open Session Response chooses other algorithms.
func (c *checkedConn) opened(payload []byte) error {
	var resp rmcpplus.OpenSessionResponse
	if err := resp.Unpack(payload); err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	chosen := algorithms{types.AuthAlg(resp.AuthAlg), types.IntegrityAlg(resp.IntegrityAlg), types.CryptAlg(resp.CryptAlg)}
	switch {
	case resp.MessageTag != c.tag:
		return errDropped
	case resp.RmcpStatusCode != types.RmcpStatusCodeNoErrors || chosen == c.proposed:
		return nil
	default:
		return fmt.Errorf("the BMC, or somebody between, answers with other algorithms (%s) than proposed (%s)", chosen, c.proposed)
	}
}

// exchanged derives the session's key from the BMC's RAKP message 2, whose code the library checks.
func (c *checkedConn) exchanged(payload []byte) error {
	resp := rmcpplus.RAKPMessage2{AuthAlg: c.proposed.auth}
	if err := resp.Unpack(payload); err != nil {
		return fmt.Errorf("RAKP message 2: %w", err)
	}
	if resp.RmcpStatusCode != types.RmcpStatusCodeNoErrors {
		return nil
	}
	var err error
	_, c.key, _, err = crypto.DeriveSessionKeys(c.proposed.auth, c.random[:], resp.ManagedSystemRandomNumber[:], c.role, c.username,
		crypto.PadPassword20([]byte(c.password)))
	return err
}

// proves reports whether a session's packet is encrypted and ends with the right code: that of everything before, from the
// authentication type on (IPMI 2.0, §13.28.4). The session's id tells it from a request of the client that was sent back.
func (c *checkedConn) proves(s *types.Session20, b []byte) bool {
	const header = 4 // RMCP
	h := s.SessionHeader20
	size, ok := crypto.IntegrityAuthCodeLen(c.proposed.integrity)
	if !ok || size == 0 || h.SessionID != c.id || !h.PayloadAuthenticated || !h.PayloadEncrypted || len(b) < header+size {
		return false
	}
	end := len(b) - size
	want, err := crypto.SessionIntegrityAuthCode(c.proposed.integrity, b[header:end], c.key, c.password)
	return err == nil && hmac.Equal(want, b[end:])
}
