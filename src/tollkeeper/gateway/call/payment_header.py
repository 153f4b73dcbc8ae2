"""Payment headers as proofs: decoded, form and signature checked, remembered (contract 4.2, 10.1).

A payment comes in either header and says itself of which version of x402 it is.

On EVM a signature that the payer's key did not make may be a contract wallet's, which only a chain can judge: the
facilitator does when the payment is new, and a credit of a purchase is spent only by the very bytes that bought it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from tollkeeper.core.networks import normalise
from tollkeeper.core.payment_offers import PresentedPayment, offered_payment
from tollkeeper.core.purchases import header_hash
from tollkeeper.core.x402.verification import form_checks, require
from tollkeeper.core.x402.version2 import PAYMENT_HEADERS, decode_payment_header, spoken_version, two_payments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tollkeeper.core.payment_offers import Asset

VERIFIED_HEADERS_MAX: Final = 10_000
VERIFIED_SIZE_BYTES: Final = 16 * 1024 * 1024  # of headers; what is kept beside each takes about as much again


class PaymentReader:
    """Reads payment headers; those that passed are kept, bounded in number and in bytes.

    `assets` are the networks that can be paid on, now or before: whether that may be now is asked once nothing is held.
    """

    def __init__(self, assets: Callable[[], Mapping[str, Asset]]) -> None:
        self._assets = assets
        self._verified: OrderedDict[bytes, PresentedPayment] = OrderedDict()
        self._size_bytes = 0

    def read(self, headers: Mapping[bytes, bytes], paid_on: Iterable[str] | None = None) -> PresentedPayment:
        """Read the payment among these headers, of which there is one; form and signature are checked.

        Takes some 0.1 ms, once for a header that a key signed: only a byte-identical header that passed before skips
        it. Raises: the refusal; `paid_on` are the networks that it names to whom paid on none that can be paid on:
        those of a gate. INVALID_PARAMETER for two different payments.
        """
        read: PresentedPayment | None = None
        for name in PAYMENT_HEADERS:
            header = headers.get(name)
            if header is None:
                continue
            one = self._verified.get(header)
            if one is None:
                one = self._read(header, name, paid_on)
            else:
                self._verified.move_to_end(header)
            if read is not None and (one.key, one.offered.signature) != (read.key, read.offered.signature):
                raise two_payments()
            read = read or one
        assert read is not None  # noqa: S101 - who asks has seen one
        return read

    def _read(self, header: bytes, name: bytes, paid_on: Iterable[str] | None) -> PresentedPayment:
        payment = decode_payment_header(header, PAYMENT_HEADERS[name])
        assets = self._assets()
        require(form_checks(payment, assets, paid_on, spoken_version(payment)))
        offered = offered_payment(payment, assets[normalise(payment.network).name])
        presented = PresentedPayment(payment, offered, header, header_hash(header))
        if offered.is_signed_by_key:
            self._remember(header, presented)
        return presented

    def _remember(self, header: bytes, presented: PresentedPayment) -> None:
        """Keep the header; those that were not used for longest give way, by their number or by their bytes."""
        self._verified[header] = presented
        self._size_bytes += len(header)
        while len(self._verified) > VERIFIED_HEADERS_MAX or self._size_bytes > VERIFIED_SIZE_BYTES:
            oldest, _ = self._verified.popitem(last=False)
            self._size_bytes -= len(oldest)
