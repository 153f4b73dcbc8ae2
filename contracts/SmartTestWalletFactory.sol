// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SmartTestWallet} from "SmartTestWallet.sol";

/// @title Deploys smart test wallets, each where its owner and a salt say.
/// @notice For tests of payers whose wallets are not deployed yet (ERC-6492). As factories on real networks do, it
///         returns the wallet that is there already, and makes a call that whoever deploys has chosen: tests of payers
///         who mean no good choose it.
contract SmartTestWalletFactory {
    function createAccount(address owner, uint256 salt, address target, bytes calldata call_)
        external
        returns (SmartTestWallet wallet)
    {
        address place = getAddress(owner, salt);
        wallet = SmartTestWallet(place);
        if (place.code.length == 0) {
            wallet = new SmartTestWallet{salt: _salt(owner, salt)}();
            wallet.initialize(owner);
        }
        if (target != address(0)) {
            (bool success,) = target.call(call_);
            require(success, "SmartTestWalletFactory: the call failed");
        }
    }

    function getAddress(address owner, uint256 salt) public view returns (address) {
        bytes32 code = keccak256(type(SmartTestWallet).creationCode);
        bytes32 place = keccak256(abi.encodePacked(bytes1(0xff), address(this), _salt(owner, salt), code));
        return address(uint160(uint256(place)));
    }

    function _salt(address owner, uint256 salt) private pure returns (bytes32) {
        return keccak256(abi.encode(owner, salt));
    }
}
