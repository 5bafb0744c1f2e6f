"""Which IP addresses may be connected to.

Pure functions over texts; the clients ask them about the very address that a socket is about to connect to,
so that neither a host's spelling nor a second DNS answer can get around the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# IANA's IPv4 special-purpose registry, whole blocks: the few global anycast addresses inside them serve no pages.
_SPECIAL_V4 = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Inside 2000::/3: IETF protocol assignments (Teredo and ORCHID among them), documentation, 6to4, documentation.
_SPECIAL_V6 = tuple(IPv6Network(block) for block in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
# An IPv4 address in the last 32 bits, reached as that IPv4 address: mapped (RFC 4291) and NAT64 (RFC 6052).
_EMBEDDING = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))


@lru_cache(maxsize=16384)
def is_global_address(ip: str) -> bool:
    """Whether the address belongs to the public Internet; False for what is no address. Never raises."""
    address = _parse(ip)
    return address is not None and _is_global(address)


@lru_cache(maxsize=16384)
def permitted(ip: str, allow_networks: tuple[str, ...]) -> bool:
    """Whether a connection to the address may be opened: it is global, or a network of `allow_networks` contains it.

    An IPv4 address embedded in an IPv6 one (mapped, NAT64) is judged as that IPv4 address. Raises ValueError for a
    network that is not in CIDR notation.
    """
    networks = parse_networks(allow_networks)
    address = _parse(ip)
    if address is None:
        return False
    if _is_global(address):
        return True
    inner = _unwrapped(address)
    return any(address in network or inner in network for network in networks)


@lru_cache(maxsize=1024)
def parse_networks(allow_networks: tuple[str, ...]) -> tuple[Network, ...]:
    """The networks of CIDR texts (host bits are ignored). Raises ValueError for other text."""
    return tuple(ip_network(text, strict=False) for text in allow_networks)


def refusal(host: str, ips: Sequence[str]) -> str:
    """The sentence for a connection that was not opened."""
    addresses = ", ".join(dict.fromkeys(ips))
    return (
        f"{host} resolves to {addresses}, which is not a public address; "
        "name its network in fetch.allow_networks if this site is yours to crawl"
    )


def _parse(ip: str) -> Address | None:
    try:
        return ip_address(ip.partition("%")[0])
    except ValueError:
        return None


def _unwrapped(address: Address) -> Address:
    if isinstance(address, IPv6Address) and any(address in network for network in _EMBEDDING):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_global(address: Address) -> bool:
    address = _unwrapped(address)
    if isinstance(address, IPv4Address):
        return not any(address in block for block in _SPECIAL_V4)
    return address in _GLOBAL_UNICAST and not any(address in block for block in _SPECIAL_V6)
