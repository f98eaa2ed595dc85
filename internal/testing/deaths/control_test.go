package deaths

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// registers is the packet that sets all registers.
func registers(rip uint64, flags uint32, cs byte) string {
	b := make([]byte, 164)
	binary.LittleEndian.PutUint64(b[ripAt:], rip)
	binary.LittleEndian.PutUint32(b[flagsAt:], flags)
	b[csAt] = cs
	return "G" + hex.EncodeToString(b)
}

// fakeDebugger serves one connection as QEMU would, with these registers, and then sends the packets that it received.
func fakeDebugger(t *testing.T, cs byte) (path string, got <-chan []string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "gdb")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	asked := make(chan []string, 1)
	go func() {
		var packets []string
		defer func() { asked <- packets }()
		conn, err := l.Accept()
		if err != nil {
			return
		}
		in := bufio.NewReader(conn)
		for {
			if _, err := in.ReadString('$'); err != nil {
				return
			}
			text, err := in.ReadString('#')
			if err != nil {
				return
			}
			text = text[:len(text)-1]
			packets = append(packets, text)
			answer := "OK"
			switch text {
			case "?":
				answer = "T05thread:01;#" + fmt.Sprintf("%02x", sum("T05thread:01;")) + "$T05thread:01;" // and unasked, as QEMU does
			case "g":
				answer = registers(0x1122334455667788, 0x246, cs)[1:]
			}
			last := answer[strings.LastIndexByte(answer, '$')+1:]
			if _, err := fmt.Fprintf(conn, "+$%s#%02x", answer, sum(last)); err != nil {
				return
			}
		}
	}()
	return path, asked
}
