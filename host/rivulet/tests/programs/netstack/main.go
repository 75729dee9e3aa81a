// Fetches a URL by gVisor's TCP/IP on a packet socket and writes what comes to a file.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const nic = 1

func main() {
	device := flag.String("device", "", "whose frames they are")
	address := flag.String("address", "", "our own, which the kernel must not have")
	gateway := flag.String("gateway", "", "IP address of the next hop")
	mac := flag.String("mac", "", "its Ethernet address")
	out := flag.String("out", "", "file")
	flag.Parse()
	if err := get(*device, *address, *gateway, *mac, flag.Arg(0), *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func get(device, address, gateway, mac, url, out string) error {
	s, err := netstack(device, net.ParseIP(address).To4(), net.ParseIP(gateway).To4(), mac)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, to string) (net.Conn, error) {
			there, err := net.ResolveTCPAddr("tcp4", to)
			if err != nil {
				return nil, err
			}
			full := tcpip.FullAddress{Addr: tcpip.AddrFromSlice(there.IP.To4()), Port: uint16(there.Port)}
			return gonet.DialContextTCP(ctx, s, full, ipv4.ProtocolNumber)
		},
	}}
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, answer.Body)
	return err
}

func netstack(device string, address, gateway net.IP, mac string) (*stack.Stack, error) {
	hop, err := net.ParseMAC(mac)
	if err != nil {
		return nil, err
	}
	own, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	// In network order, on machines whose own is the other one.
	every := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(every))
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: every, Ifindex: own.Index}); err != nil {
		return nil, err
	}
	link, err := fdbased.New(&fdbased.Options{
		FDs: []int{fd}, MTU: uint32(own.MTU), EthernetHeader: true, Address: tcpip.LinkAddress(own.HardwareAddr),
		PacketDispatchMode: fdbased.RecvMMsg,
	})
	if err != nil {
		return nil, err
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true)
	if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack); err != nil {
		return nil, fmt.Errorf("SACK: %s", err)
	}
	if err := s.CreateNIC(nic, link); err != nil {
		return nil, fmt.Errorf("interface: %s", err)
	}
	with := tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(address), PrefixLen: 24}
	protocol := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: with}
	if err := s.AddProtocolAddress(nic, protocol, stack.AddressProperties{}); err != nil {
		return nil, fmt.Errorf("address: %s", err)
	}
	next := tcpip.AddrFromSlice(gateway)
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, Gateway: next, NIC: nic}})
	if err := s.AddStaticNeighbor(nic, ipv4.ProtocolNumber, next, tcpip.LinkAddress(hop)); err != nil {
		return nil, fmt.Errorf("neighbour: %s", err)
	}
	return s, nil
}
